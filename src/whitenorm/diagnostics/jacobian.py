"""How a layer stretches what passes it: the singular values of its Jacobian."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from whitenorm.layers.base import unchanged_buffers


def jacobian_spectrum(module: nn.Module, x: Tensor) -> Tensor:
    r"""The singular values of a module's Jacobian at each sample, from the largest (DBN, section 3.5).

    .. math:: \sigma_i(J), \qquad J = \frac{\partial\, \text{output of a sample}}{\partial\, \text{its input}}

    Of a chain of layers J is the product of theirs. Where all values lie in a small range around 1, dynamical isometry,
    gradients keep their size on the way back. The module runs as at inference, so that a sample's output depends on its
    own input alone and norms of the batch are fixed maps; give them the statistics of the data first, by
    :func:`whitenorm.recalibrate_`. It costs a backward pass for each number of one sample's output.

    Args:
        module: any module, such as a part of a model; it keeps its mode.
        x: inputs ``(S, ...)``, a sample a row.

    Returns:
        ``(S, min(inputs, outputs))``, numbers of one sample, in float64.

    Example::

        >>> layer = nn.Linear(2, 2, bias=False)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [0.5, 0.0]])
        >>> jacobian_spectrum(layer, torch.randn(1, 2))
        tensor([[3.0000, 0.5000]], dtype=torch.float64)
    """
    if x.ndim < 2 or not x.is_floating_point() or not x.numel():
        raise ValueError(f"expected floating-point samples (S, ...) (got {x.dtype} of shape {tuple(x.shape)})")
    x = x.detach().requires_grad_()
    with torch.enable_grad(), unchanged_buffers(module), _at_inference(module):
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
def _at_inference(module: nn.Module) -> Iterator[None]:
    """Every part in evaluation mode, and in its own again after."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
