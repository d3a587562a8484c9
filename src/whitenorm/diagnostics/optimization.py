"""Conditioning of a model's optimization: a layer's Fisher information and a module's Jacobian (DBN)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.conditioning import eigenvalue_ratio, eigenvalues, flatten_features
from whitenorm.layers.base import unchanged_buffers


def fisher_condition_number(model: nn.Module, data: Tensor, layer: str, *, softmax: bool = True) -> float:
    r"""Return the condition number of the relative Fisher information matrix of a linear layer (DBN, figure 3).

    For a classifier's last layer, with inputs a (a one for the bias appended) and probabilities p,

    .. math:: F = E\big[ (\operatorname{diag} p - p p^T) \otimes a a^T \big],

    restricted to differences of logits, because a constant added to all logits changes nothing. For a layer whose
    outputs are not logits (``softmax=False``) the first factor is I, and the condition number is that of
    :math:`E[a a^T]`.

    Args:
        model: any module; it is run once on the data, in its current mode.
        data: the model's input.
        layer: the name of an ``nn.Linear`` in the model.
        softmax: whether the layer's outputs are the logits of a softmax.

    Example::

        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> fisher_condition_number(model, torch.randn(100, 3), "2") >= 1
        True
    """
    inputs, outputs = _run_and_record(model, data, layer)
    if model.get_submodule(layer).bias is not None:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    if not softmax:
        return eigenvalue_ratio(eigenvalues(inputs.T @ inputs / len(inputs)).tolist())
    probabilities = outputs.softmax(1)
    classes = probabilities.shape[1]
    # An orthonormal basis of the differences of logits.
    identity = torch.eye(classes, dtype=inputs.dtype, device=inputs.device)
    basis = torch.linalg.qr(torch.cat([torch.ones_like(identity[:, :1]), identity], 1))[0][:, 1:]
    curvature = torch.diag_embed(probabilities) - probabilities.unsqueeze(2) * probabilities.unsqueeze(1)
    curvature = basis.T @ curvature @ basis
    size = (classes - 1) * inputs.shape[1]
    fisher = torch.einsum("nij,nk,nl->ikjl", curvature, inputs, inputs).reshape(size, size) / len(inputs)
    return eigenvalue_ratio(eigenvalues(fisher).tolist())


def _run_and_record(model: nn.Module, data: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """Run a model once and return the input and output of one of its linear layers, as rows."""
    modules = dict(model.named_modules())
    linear = modules.get(layer)
    if not isinstance(linear, nn.Linear):
        names = ", ".join(name for name, module in modules.items() if isinstance(module, nn.Linear)) or "none"
        raise ValueError(
            f"expected layer to name an nn.Linear of the model (got {layer!r}, {type(linear).__name__}); "
            f"it has: {names}"
        )
    records: list[tuple[Tensor, Tensor]] = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        records.append((inputs[0].detach(), output.detach()))

    handle = linear.register_forward_hook(hook)
    try:
        with torch.no_grad(), unchanged_buffers(model):
            model(data)
    finally:
        handle.remove()
    if not records:
        raise ValueError(f"expected the model to use its layer {layer!r} (it did not); name another")
    inputs, outputs = (tensor.reshape(-1, tensor.shape[-1]) for tensor in records[0])
    return flatten_features(inputs), flatten_features(outputs)


def jacobian_spectrum(module: nn.Module, x: Tensor) -> Tensor:
    r"""Return the singular values of a module's Jacobian at each sample, largest first (DBN, section 3.5).

    .. math:: \sigma_i(J), \qquad J = \frac{\partial\, \text{output of a sample}}{\partial\, \text{its input}}

    The Jacobian of a chain of layers is the product of theirs. Where all values lie in a small range around 1, called
    dynamical isometry, gradients keep their norm in backpropagation. The module runs in eval mode, so that a sample's
    output depends on its own input alone and batch norms are fixed maps; recompute their statistics first with
    :func:`whitenorm.recalibrate_`. The cost is one backward pass per output value of a sample.

    Args:
        module: any module, such as a part of a model; its mode is restored.
        x: inputs ``(S, ...)``, one row per sample.

    Returns:
        ``(S, min(inputs, outputs))`` in float64, for the numbers of inputs and outputs of one sample.

    Example::

        >>> layer = nn.Linear(2, 2, bias=False)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [0.5, 0.0]])
        >>> jacobian_spectrum(layer, torch.randn(1, 2))
        tensor([[3.0000, 0.5000]], dtype=torch.float64)
    """
    if x.ndim < 2 or not x.is_floating_point() or not x.numel():
        raise ValueError(f"expected floating-point samples (S, ...) (got {x.dtype} of shape {tuple(x.shape)})")
    x = x.detach().requires_grad_()
    with torch.enable_grad(), unchanged_buffers(module), eval_mode(module):
        output = module(x)
        if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(x):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"expected a module with a row of outputs for each of {len(x)} samples (got {shape})")
        rows = [
            torch.autograd.grad(column.sum(), x, retain_graph=True)[0].flatten(1)
            for column in output.flatten(1).unbind(1)
        ]
    return torch.linalg.svdvals(torch.stack(rows, 1).double())


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode, then restore the mode of each of its parts."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
