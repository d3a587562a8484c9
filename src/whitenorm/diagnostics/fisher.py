"""The conditioning of a layer's own optimisation problem."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.conditioning import features_of
from whitenorm.layers.base import unchanged_buffers


def fisher_condition_number(model: nn.Module, data: Tensor, layer: str, *, softmax: bool = True) -> float:
    r"""The condition number of the relative Fisher information matrix of a linear layer (DBN, figure 3).

    For a classifier's last layer, with inputs a (a one for the bias appended) and probabilities p,

    .. math:: F = E\big[ (\operatorname{diag} p - p p^T) \otimes a a^T \big],

    on the logits' differences: a constant added to all logits changes nothing, and its direction is left out. For a
    layer whose output counts as it is (``softmax=False``), the first factor is I, the Kronecker structure exact, and
    the number that of :math:`E[a a^T]` alone.

    Args:
        model: any module; it is run once on the data, in the mode it is in.
        data: its input.
        layer: the name of an ``nn.Linear`` in it.
        softmax: whether the layer's outputs are the logits of a softmax.

    Example::

        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> fisher_condition_number(model, torch.randn(100, 3), "2") >= 1
        True
    """
    inputs, outputs = _watch(model, data, layer)
    linear = model.get_submodule(layer)
    if linear.bias is not None:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    if not softmax:
        return _ratio(inputs.T @ inputs / len(inputs))
    probabilities = outputs.softmax(1)
    classes = probabilities.shape[1]
    # An orthonormal basis of the differences between logits.
    identity = torch.eye(classes, dtype=inputs.dtype, device=inputs.device)
    basis = torch.linalg.qr(torch.cat([torch.ones_like(identity[:, :1]), identity], 1))[0][:, 1:]
    curvature = torch.diag_embed(probabilities) - probabilities.unsqueeze(2) * probabilities.unsqueeze(1)
    curvature = basis.T @ curvature @ basis
    size = (classes - 1) * inputs.shape[1]
    fisher = torch.einsum("nij,nk,nl->ikjl", curvature, inputs, inputs).reshape(size, size) / len(inputs)
    return _ratio(fisher)


def _ratio(matrix: Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix)
    negligible = values[-1] * len(values) * torch.finfo(values.dtype).eps
    return math.inf if values[0] <= negligible else (values[-1] / values[0]).item()


def _watch(model: nn.Module, data: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """The input and output of a linear layer in one run of the model."""
    modules = dict(model.named_modules())
    linear = modules.get(layer)
    if not isinstance(linear, nn.Linear):
        known = ", ".join(name for name, module in modules.items() if isinstance(module, nn.Linear)) or "none"
        raise ValueError(
            f"expected layer to name an nn.Linear of the model (got {layer!r}, {type(linear).__name__}); "
            f"it has: {known}"
        )
    seen: list[tuple[Tensor, Tensor]] = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append((inputs[0].detach(), output.detach()))

    handle = linear.register_forward_hook(hook)
    try:
        with torch.no_grad(), unchanged_buffers(model):
            model(data)
    finally:
        handle.remove()
    if not seen:
        raise ValueError(f"expected the model to use its layer {layer!r} (it did not); name another")
    inputs, outputs = (tensor.reshape(-1, tensor.shape[-1]) for tensor in seen[0])
    return features_of(inputs), features_of(outputs)
