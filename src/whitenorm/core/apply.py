"""Last step: one affine map per group, with centring, γ and β folded into it, and its gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whitenorm.core.layout import expand_channels
from whitenorm.core.moments import outer
from whitenorm.core.pooling import LinearMap


class Affine(NamedTuple):
    """y = matrix @ x + offset, with ``(N or 1, G, K, K)`` and ``(N or 1, G, K)``."""

    matrix: Tensor
    offset: Tensor


def fold(whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None) -> Affine:
    r"""Fold :math:`y = \gamma W (x - \mu) + \beta` into :math:`y = A x + b`; γ and β are ``(G, K)``.

    Example::

        >>> import torch
        >>> matrix, offset = fold(2 * torch.eye(2), torch.tensor([1.0, 3.0]), None, None)
        >>> matrix @ torch.tensor([1.0, 4.0]) + offset
        tensor([0., 2.])
    """
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    offset = -(matrix @ mean.unsqueeze(-1)).squeeze(-1)
    return Affine(matrix, offset if bias is None else offset + bias)


def apply(x: Tensor, affine: Affine) -> Tensor:
    """The map on ``x[N, G, K, L]``, in the memory order of x."""
    return _left_product(affine.matrix, x).add_(affine.offset.unsqueeze(-1))


class FoldGradients(NamedTuple):
    """Of W and μ in their shapes, and of γ and β as ``(C,)``."""

    whitening: Tensor
    mean: Tensor
    weight: Tensor | None
    bias: Tensor | None


def fold_backward(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> FoldGradients:
    """From the gradient of y, in one read of it and of x, to those of all that was folded."""
    pooled = whitening.shape[0] == 1
    grad_offset = grad.sum((0, 3), keepdim=True).squeeze(-1) if pooled else grad.sum(3)
    grad_matrix = outer(grad, x, pooled) - grad_offset.unsqueeze(-1) @ mean.unsqueeze(-2)
    grad_whitening = grad_matrix if weight is None else weight.unsqueeze(-1) * grad_matrix
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    return FoldGradients(
        whitening=grad_whitening,
        mean=-(matrix.mT @ grad_offset.unsqueeze(-1)).squeeze(-1),
        weight=None if weight is None else (grad_matrix * whitening).sum((0, -1)).flatten(),
        bias=None if bias is None else grad_offset.sum(0).flatten(),
    )


def input_gradient(grad: Tensor, x: Tensor, matrix: Tensor, statistics: LinearMap) -> Tensor:
    """matrixᵀ @ grad, through the map, plus what came through the statistics: one read of both, one write."""
    total = _left_product(matrix.mT, grad)
    through = statistics.matrix.expand(*x.shape[:2], -1, -1)
    total.flatten(0, 1).baddbmm_(through.flatten(0, 1), x.flatten(0, 1))
    return total.add_(statistics.offset.unsqueeze(-1))


def scale_channels(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """γ·y + β where they vary within a whitened row, and so do not fold into its matrix; y is ``(N, C, ...)``."""
    if weight is not None:
        y = y * expand_channels(weight, y)
    return y if bias is None else y + expand_channels(bias, y)


def scale_channels_backward(
    grad: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of y, γ and β; y is needed for γ's alone."""
    dims = [0, *range(2, grad.ndim)]
    grad_bias = None if bias is None else grad.sum(dims)
    if weight is None or y is None:
        return grad, None, grad_bias
    return grad * expand_channels(weight, grad), (grad * y).sum(dims), grad_bias


def _left_product(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix @ x, written in the memory order of x."""
    by_rows = x.stride(-1) > x.stride(-2)
    return (x.mT @ matrix.mT).mT if by_rows else matrix @ x
