"""Last step: one affine map per group, with centring, γ and β folded into it, and its gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.layout import Layout, expand_channels
from whitenorm.core.mode import may_write_in_place
from whitenorm.core.moments import outer
from whitenorm.core.pooling import LinearMap
from whitenorm.core.precision import no_autocast


class Affine(NamedTuple):
    """y = matrix @ x + offset, with ``(N or 1, G, K, K)`` and ``(N or 1, G, K)``."""

    matrix: Tensor
    offset: Tensor


def fold(whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None) -> Affine:
    r"""Fold :math:`y = \gamma W (x - \mu) + \beta` into :math:`y = A x + b`; γ and β are ``(G, K)``.

    Example::

        >>> matrix, offset = fold(2 * torch.eye(2), torch.tensor([1.0, 3.0]), None, None)
        >>> matrix @ torch.tensor([1.0, 4.0]) + offset
        tensor([0., 2.])
    """
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    offset = -(matrix @ mean.unsqueeze(-1)).squeeze(-1)
    return Affine(matrix, offset if bias is None else offset + bias)


def apply(x: Tensor, affine: Affine, layout: Layout, like: Tensor) -> Tensor:
    """The map on ``x[N, G, K, L]``, as a tensor of the shape and memory format of ``like``."""
    if not may_write_in_place():
        return layout.join(affine.matrix @ x + affine.offset.unsqueeze(-1), like)
    whole, y = layout.empty(like, x.dtype)
    _multiply(affine.matrix, x, y)
    y.add_(affine.offset.unsqueeze(-1))
    return layout.fill(whole, y)


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
    grad_matrix, grad_offset = _affine_gradients(grad, x, pooled=whitening.shape[0] == 1)
    grad_matrix = grad_matrix - grad_offset.unsqueeze(-1) @ mean.unsqueeze(-2)
    grad_whitening = grad_matrix if weight is None else weight.unsqueeze(-1) * grad_matrix
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    return FoldGradients(
        whitening=grad_whitening,
        mean=-(matrix.mT @ grad_offset.unsqueeze(-1)).squeeze(-1),
        weight=None if weight is None else (grad_matrix * whitening).sum((0, -1)).flatten(),
        bias=None if bias is None else grad_offset.sum(0).flatten(),
    )


def input_gradient(grad: Tensor, x: Tensor, matrix: Tensor, through: LinearMap, layout: Layout, like: Tensor) -> Tensor:
    """matrixᵀ @ grad, and what came through the statistics: one read of both, one write."""
    if not may_write_in_place():
        return layout.join(matrix.mT @ grad + through.matrix @ x + through.offset.unsqueeze(-1), like)
    whole, total = layout.empty(like, x.dtype)
    _multiply(matrix.mT, grad, total)
    _multiply(through.matrix, x, total, add=True)
    total.add_(through.offset.unsqueeze(-1))
    return layout.fill(whole, total)


class FixedMap(torch.autograd.Function):
    """:func:`apply` of given matrices to an input ``(N, C, ...)``: keeps the input as it came, and the matrix."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, matrix: Tensor, offset: Tensor, layout: Layout) -> Tensor:
        return _fixed_map(x, matrix, offset, layout).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:3])
        ctx.layout = inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        x, matrix, offset = ctx.saved_tensors
        layout: Layout = ctx.layout
        grad = grad.to(matrix.dtype)
        if torch.is_grad_enabled():
            pullback = torch.func.vjp(lambda x, a, b: _fixed_map(x, a, b, layout), x, matrix, offset)[1]
            return *pullback(grad), None
        grad_x = grad_matrix = grad_offset = None
        with no_autocast(x):
            grad = layout.split(grad)
            if ctx.needs_input_grad[0]:
                grad_x = apply(grad, Affine(matrix.mT, torch.zeros_like(offset)), layout, x).to(x.dtype)
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                gradients = _affine_gradients(grad, layout.split(x.to(matrix.dtype)), pooled=True)
                grad_matrix, grad_offset = (tensor.squeeze(0) for tensor in gradients)
        return grad_x, grad_matrix, grad_offset, None


def _fixed_map(x: Tensor, matrix: Tensor, offset: Tensor, layout: Layout) -> Tensor:
    with no_autocast(x):
        return apply(layout.split(x.to(matrix.dtype)), Affine(matrix, offset), layout, x)


def scale_channels(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """γ·y + β where they vary within a whitened row, and so do not fold into its matrix; y is ``(N, C, ...)``."""
    if may_write_in_place():
        y = y if weight is None else y.mul_(expand_channels(weight, y))
        return y if bias is None else y.add_(expand_channels(bias, y))
    y = y if weight is None else y * expand_channels(weight, y)
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


def _affine_gradients(grad: Tensor, x: Tensor, pooled: bool) -> tuple[Tensor, Tensor]:
    """Of matrix and offset, from that of matrix @ x + offset."""
    grad_offset = grad.sum((0, 3)).unsqueeze(0) if pooled else grad.sum(3)
    return outer(grad, x, pooled), grad_offset


def _multiply(matrix: Tensor, x: Tensor, out: Tensor, add: bool = False) -> None:
    """out ← matrix @ x, or added to out, written where out lies in memory."""
    if not (_one_batch(x) and _one_batch(out)):
        product = matrix @ x
        out.add_(product) if add else out.copy_(product)
        return
    matrices = matrix.expand(*x.shape[:2], -1, -1).flatten(0, 1)
    x, out = x.flatten(0, 1), out.flatten(0, 1)
    if out.stride(-1) > out.stride(-2):
        x, matrices, out = matrices.mT, x.mT, out.mT
    if add:
        out.baddbmm_(matrices, x)
    else:
        torch.bmm(matrices, x, out=out)


def _one_batch(x: Tensor) -> bool:
    """Whether samples and groups together are one batch dimension, without a copy."""
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
