"""Last step: one affine map per group, with centring, γ and β folded into it, and its gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

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
        weight=None if weight is None else (grad_matrix * whitening).sum((0, -1)),
        bias=None if bias is None else grad_offset.sum(0),
    )


def input_gradient(grad: Tensor, x: Tensor, matrix: Tensor, statistics: LinearMap) -> Tensor:
    """matrixᵀ @ grad, through the map, plus what came through the statistics: one read of both, one write."""
    total = _left_product(matrix.mT, grad)
    through = statistics.matrix.expand(*x.shape[:2], -1, -1)
    total.flatten(0, 1).baddbmm_(through.flatten(0, 1), x.flatten(0, 1))
    return total.add_(statistics.offset.unsqueeze(-1))


def _left_product(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix @ x, written in the memory order of x."""
    by_rows = x.stride(-1) > x.stride(-2)
    return (x.mT @ matrix.mT).mT if by_rows else matrix @ x
