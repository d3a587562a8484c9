"""The fused backward of the last step: one read of x and grad for the small gradients, one of both for dx."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.apply import Map, Scale, apply, centred_block, multiply, must_centre, whitened
from whitenorm.core.blocks import Block, Scratch, blocks, gathered, room
from whitenorm.core.layout import Layout
from whitenorm.core.mode import may_write_in_place
from whitenorm.core.moments import outer
from whitenorm.core.precision import no_autocast
from whitenorm.core.vjp import present_vjp


class FoldGradients(NamedTuple):
    """Of W and μ in their shapes, and of γ and β as ``(C,)``."""

    whitening: Tensor
    mean: Tensor
    weight: Tensor | None
    bias: Tensor | None


def fold_backward(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    mean: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    matrix: Tensor,
    layout: Layout,
    centre: bool,
) -> FoldGradients:
    """From the gradient of y = γ·W(x - μ) + β to those of all that was folded; ``matrix`` is γ·W."""
    grad_matrix, grad_offset = affine_gradients(grad, x, mean, layout, centre, pooled=whitening.shape[0] == 1)
    grad_whitening = grad_matrix if weight is None else weight.unsqueeze(-1) * grad_matrix
    return FoldGradients(
        whitening=grad_whitening,
        mean=_mean_gradient(matrix, grad_offset),
        weight=None if weight is None else (grad_matrix * whitening).sum((0, -1)).reshape(-1),
        bias=None if bias is None else grad_offset.sum(0).reshape(-1),
    )


def scaled_backward(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, scale: Scale, layout: Layout, centre: bool
) -> FoldGradients:
    """The same where γ and β scale the whitened x within its rows."""
    matrices, offsets, weights, biases = [], [], [], []
    scratch, inner_scratch = (Scratch(), Scratch()), Scratch(padded=True)
    for block in blocks(x, cut_positions=False):
        inner = centred_block(block, x, mean if centre else None, layout, inner_scratch)
        grads, matrix = block.of(grad), block.own(whitening)
        sums = _over_channel(grads, scale)
        biases.append(layout.channel_sums(sums))
        if scale.weight is None:
            matrices.append(outer(grads, inner, pooled=False))
            offsets.append(sums.sum(-1))
            continue
        grad_matrix, products = _scaled_products(grads, inner, matrix, scale, *scratch)
        matrices.append(grad_matrix)
        offsets.append((sums * scale.weight.squeeze(-1)).sum(-1))
        products = products if centre else products - sums * (matrix @ block.own(mean).unsqueeze(-1))
        weights.append(layout.channel_sums(products))
    grad_matrix, grad_offset = torch.cat(matrices), torch.cat(offsets)
    return FoldGradients(
        whitening=grad_matrix if centre else grad_matrix - _outer(grad_offset, mean),
        mean=_mean_gradient(whitening, grad_offset),
        weight=None if scale.weight is None else torch.stack(weights).sum(0),
        bias=None if scale.bias is None else torch.stack(biases).sum(0),
    )


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _mean_gradient(matrix: Tensor, grad_offset: Tensor) -> Tensor:
    return -(matrix * grad_offset.unsqueeze(-1)).sum(-2)


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
    grad: Tensor,
    x: Tensor,
    matrix: Tensor,
    scale: Scale | None,
    through: Map,
    layout: Layout,
    like: Tensor,
) -> Tensor:
    """matrixᵀ @ grad, and what came through the statistics."""
    assert through.offset is not None
    scratch = Scratch()
    if not may_write_in_place():
        grad = _times_scale(grad, scale, scratch)
        indirect = through.matrix @ centred_block(Block(), x, through.mean, layout, scratch)
        return layout.join(matrix.mT @ grad + indirect + through.offset.unsqueeze(-1), like)
    whole, total = layout.empty(like, x.dtype)
    inner, outer = Scratch(padded=True), Scratch()
    for block in blocks(x, cut_positions=scale is None):
        out = block.of(total)
        product = room(out, outer)
        multiply(block.own(matrix).mT, gathered(_times_scale(block.of(grad), scale, scratch), inner), product)
        multiply(block.own(through.matrix), centred_block(block, x, through.mean, layout, inner), product, add=True)
        torch.add(product, block.own(through.offset).unsqueeze(-1), out=out)
    return layout.fill(whole, total)


def affine_gradients(
    grad: Tensor, x: Tensor, mean: Tensor, layout: Layout, centre: bool, pooled: bool
) -> tuple[Tensor, Tensor]:
    """Of matrix and offset, from that of matrix @ (x - mean) + offset."""
    left, right = Scratch(), Scratch(padded=True)
    matrices, offsets = [], []
    for block in blocks(x):
        inner = gathered(block.of(grad), left)
        matrices.append(outer(inner, centred_block(block, x, mean if centre else None, layout, right), pooled))
        offsets.append(inner.sum((0, 3)).unsqueeze(0) if pooled else inner.sum(3))
    joined = [_joined(parts, pooled) for parts in (matrices, offsets)]
    return joined[0] if centre else joined[0] - _outer(joined[1], mean), joined[1]


def _joined(parts: list[Tensor], pooled: bool) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts).sum(0) if pooled else torch.cat(parts)


class FixedMap(torch.autograd.Function):
    """γ·W(x - μ) + β of an input ``(N, C, ...)`` and given tensors, all of which it keeps as they came."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None, layout: Layout
    ) -> Tensor:
        return fixed_map(x, whitening, mean, weight, bias, layout)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:5])
        ctx.layout = inputs[5]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        saved, layout = ctx.saved_tensors, ctx.layout
        x, whitening, mean, weight, bias = saved
        if torch.is_grad_enabled():
            return *present_vjp(partial(fixed_map, layout=layout), saved)(grad), None
        matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
        grad_x = None
        with no_autocast(x):
            grad = layout.split(grad.to(matrix.dtype))
            if ctx.needs_input_grad[0]:
                grad_x = apply(grad, Map(matrix.mT, None, None), None, layout, x).to(x.dtype)
            if not any(ctx.needs_input_grad[1:5]):
                return grad_x, None, None, None, None, None
            wide = layout.split(x.to(matrix.dtype))
            centre = must_centre(wide, whitening, mean, layout)
            small = fold_backward(grad, wide, whitening, mean, weight, bias, matrix, layout, centre)
        parameters = [None if tensor is None else layout.parameter(tensor) for tensor in (small.weight, small.bias)]
        return grad_x, small.whitening, small.mean, *parameters, None


def fixed_map(
    x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None, layout: Layout
) -> Tensor:
    with no_autocast(x):
        wide = layout.split(x.to(whitening.dtype))
        return whitened(wide, whitening, mean, weight, bias, None, layout, x).to(x.dtype)


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
