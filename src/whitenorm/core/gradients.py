"""The fused backward of the last step: one read of x and grad for the small gradients, one of both for dx."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.apply import Affine, Scale, apply, multiply
from whitenorm.core.blocks import Block, Scratch, blocks, gathered, room
from whitenorm.core.layout import Layout
from whitenorm.core.mode import may_write_in_place
from whitenorm.core.moments import outer
from whitenorm.core.pooling import LinearMap
from whitenorm.core.precision import no_autocast
from whitenorm.core.vjp import vjp


class FoldGradients(NamedTuple):
    """Of W and μ in their shapes, and of γ and β as ``(C,)``."""

    whitening: Tensor
    mean: Tensor
    weight: Tensor | None
    bias: Tensor | None


def fold_backward(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None, matrix: Tensor
) -> FoldGradients:
    """From the gradient of y = γ·W(x - μ) + β to those of all that was folded; ``matrix`` is γ·W."""
    grad_matrix, grad_offset = affine_gradients(grad, x, pooled=whitening.shape[0] == 1)
    grad_matrix = grad_matrix - grad_offset.unsqueeze(-1) * mean.unsqueeze(-2)
    grad_whitening = grad_matrix if weight is None else weight.unsqueeze(-1) * grad_matrix
    return FoldGradients(
        whitening=grad_whitening,
        mean=-(matrix * grad_offset.unsqueeze(-1)).sum(-2),
        weight=None if weight is None else (grad_matrix * whitening).sum((0, -1)).reshape(-1),
        bias=None if bias is None else grad_offset.sum(0).reshape(-1),
    )


def scaled_backward(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, scale: Scale, layout: Layout
) -> FoldGradients:
    """The same where γ and β scale the whitened x within its rows."""
    matrices, offsets, weights, biases = [], [], [], []
    scratch = Scratch(), Scratch()
    for block in blocks(x, cut_positions=False):
        inner, grads, matrix = block.of(x), block.of(grad), block.own(whitening)
        sums = _over_channel(grads, scale)
        biases.append(layout.channel_sums(sums))
        if scale.weight is None:
            matrices.append(outer(grads, inner, pooled=False))
            offsets.append(sums.sum(-1))
            continue
        grad_matrix, products = _scaled_products(grads, inner, matrix, scale, *scratch)
        matrices.append(grad_matrix)
        offsets.append((sums * scale.weight.squeeze(-1)).sum(-1))
        # In a dual, the mean is in the matrix.
        products = products if layout.dual else products - sums * (matrix @ block.own(mean).unsqueeze(-1))
        weights.append(layout.channel_sums(products))
    grad_offset = torch.cat(offsets)
    return FoldGradients(
        whitening=torch.cat(matrices) - grad_offset.unsqueeze(-1) * mean.unsqueeze(-2),
        mean=-(whitening * grad_offset.unsqueeze(-1)).sum(-2),
        weight=None if scale.weight is None else torch.stack(weights).sum(0),
        bias=None if scale.bias is None else torch.stack(biases).sum(0),
    )


def _over_channel(values: Tensor, scale: Scale) -> Tensor:
    """Sums over the positions of each channel, ``(N, 1, K, C / K)``."""
    split = scale.split(values)
    return split.squeeze(-1) if split.shape[-1] == 1 else split.sum(-1)


def _scaled_products(
    grad: Tensor, x: Tensor, whitening: Tensor, scale: Scale, left: Scratch, right: Scratch
) -> tuple[Tensor, Tensor]:
    """(γ·grad)·xᵀ as ``(N, 1, K, K)``, and grad times W·x, summed over each channel, as ``(N, 1, K, C / K)``.

    Both come from grad·xᵀ of each channel of the groups, where channels are long enough for such matrices to be small.
    Otherwise, as in vectors, W·x is computed again.
    """
    assert scale.weight is not None
    if scale.split(x).shape[-1] < 2 * x.shape[2]:
        product = torch.mul(_product(whitening, x, left), grad, out=left(x))
        return outer(_times_scale(grad, scale, right), x, pooled=False), _over_channel(product, scale)
    channels = zip(scale.split(grad).unbind(3), scale.split(x).unbind(3), strict=True)
    matrices = torch.stack([outer(g, values, pooled=False) for g, values in channels], 2)  # N, 1, C / K, K, K
    products = (matrices * whitening.unsqueeze(2)).sum(-1).mT
    return (matrices * scale.weight.transpose(0, 1)).sum(2), products


def input_gradient(
    grad: Tensor, x: Tensor, matrix: Tensor, scale: Scale | None, through: LinearMap, layout: Layout, like: Tensor
) -> Tensor:
    """matrixᵀ @ grad, and what came through the statistics."""
    scratch = Scratch()
    if not may_write_in_place():
        grad = _times_scale(grad, scale, scratch)
        return layout.join(matrix.mT @ grad + through.matrix @ x + through.offset.unsqueeze(-1), like)
    whole, total = layout.empty(like, x.dtype)
    inner, outer = Scratch(), Scratch()
    for block in blocks(x, cut_positions=scale is None):
        out = block.of(total)
        product = room(out, outer)
        multiply(block.own(matrix).mT, gathered(_times_scale(block.of(grad), scale, scratch), inner), product)
        multiply(block.own(through.matrix), gathered(block.of(x), inner), product, add=True)
        torch.add(product, block.own(through.offset).unsqueeze(-1), out=out)
    return layout.fill(whole, total)


def affine_gradients(grad: Tensor, x: Tensor, pooled: bool) -> tuple[Tensor, Tensor]:
    """Of matrix and offset, from that of matrix @ x + offset."""

    left, right = Scratch(), Scratch()

    def part(block: Block) -> tuple[Tensor, Tensor]:
        inner = gathered(block.of(grad), left)
        offset = inner.sum((0, 3)).unsqueeze(0) if pooled else inner.sum(3)
        return outer(inner, gathered(block.of(x), right), pooled), offset

    matrices, offsets = zip(*(part(block) for block in blocks(x)), strict=True)
    if len(matrices) == 1:
        return matrices[0], offsets[0]
    if pooled:
        return torch.stack(matrices).sum(0), torch.stack(offsets).sum(0)
    return torch.cat(matrices), torch.cat(offsets)


class FixedMap(torch.autograd.Function):
    """:func:`apply` of given matrices to an input ``(N, C, ...)``: keeps the input as it came, and the matrix."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, matrix: Tensor, offset: Tensor, layout: Layout) -> Tensor:
        return fixed_map(x, matrix, offset, layout)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:3])
        ctx.layout = inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        x, matrix, offset = ctx.saved_tensors
        layout: Layout = ctx.layout
        if torch.is_grad_enabled():
            pullback = vjp(lambda x, a, b: fixed_map(x, a, b, layout), x, matrix, offset)[1]
            return *pullback(grad), None
        grad = grad.to(matrix.dtype)
        grad_x = grad_matrix = grad_offset = None
        with no_autocast(x):
            grad = layout.split(grad)
            if ctx.needs_input_grad[0]:
                grad_x = apply(grad, Affine(matrix.mT, torch.zeros_like(offset)), None, layout, x).to(x.dtype)
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                grad_matrix, grad_offset = affine_gradients(grad, layout.split(x.to(matrix.dtype)), pooled=True)
        return grad_x, grad_matrix, grad_offset, None


def fixed_map(x: Tensor, matrix: Tensor, offset: Tensor, layout: Layout) -> Tensor:
    with no_autocast(x):
        return apply(layout.split(x.to(matrix.dtype)), Affine(matrix, offset), None, layout, x).to(x.dtype)


def _times_scale(grad: Tensor, scale: Scale | None, scratch: Scratch) -> Tensor:
    if scale is None or scale.weight is None:
        return grad
    out = scratch(grad)
    if out is None:
        return (scale.split(grad) * scale.weight).reshape(grad.shape)
    torch.mul(scale.split(grad), scale.weight, out=scale.split(out))
    return out


def _product(matrix: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    out = scratch(x)
    if out is None:
        return matrix @ x
    multiply(matrix, x, out)
    return out
