"""First step back: one read of grad and x for the gradients of the map."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm._runtime import Scratch
from whitenorm.ops.torch.apply import Centre, Scale, centre_of, multiply, scale_of, times_vector
from whitenorm.ops.torch.blocks import blocks, gathered, in_rows
from whitenorm.ops.torch.moments import outer
from whitenorm.ops.types import MapGradients


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """Sums of grad·(x - μ)ᵀ and of grad, over the positions and, for one matrix of all samples, over these.

    Where a feature has several channels, γ is in them, and the gradients of γ and β come with them.
    """
    return gradients(grad, x, whitening, mean, centre_of(x, whitening, mean), weight, bias)


def gradients(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    mean: Tensor,
    centre: Centre,
    weight: Tensor | None,
    bias: Tensor | None,
) -> MapGradients:
    """The same, with x centred so before the product."""
    grad, x = in_rows(grad), in_rows(x)
    scale = scale_of(weight, bias)
    if scale is not None:
        return _scaled(grad, x, whitening, mean, centre, scale)
    pooled = whitening.shape[0] == 1
    left, right = Scratch(), Scratch(padded=True)
    matrices, offsets = [], []
    for block in blocks(x):
        inner = gathered(block.of(grad), left)
        matrices.append(outer(inner, centre.off(block, x, right), pooled))
        offsets.append(inner.sum((0, 3)).unsqueeze(0) if pooled else inner.sum(3))
    matrix, offset = [_joined(parts, pooled) for parts in (matrices, offsets)]
    return MapGradients(_about(mean, matrix, offset, centre), offset)


def _about(mean: Tensor, matrix: Tensor, offset: Tensor, centre: Centre) -> Tensor:
    """The sum of grad·(x - μ)ᵀ, from that about another centre."""
    return matrix - offset.unsqueeze(-1) * mean.unsqueeze(-2) if centre.is_nothing() else matrix


def _joined(parts: list[Tensor], pooled: bool) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts).sum(0) if pooled else torch.cat(parts)


def _scaled(grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, centre: Centre, scale: Scale) -> MapGradients:
    """Where γ and β scale the whitened x within its rows."""
    matrices, offsets, weights, biases = [], [], [], []
    scratch, inner_scratch, grad_scratch = (Scratch(), Scratch()), Scratch(padded=True), Scratch()
    for block in blocks(x, cut_positions=False):
        inner = centre.off(block, x, inner_scratch)
        grads, matrix = gathered(block.of(grad), grad_scratch), block.select(whitening)
        sums = _over_channel(grads, scale)
        biases.append(sums.sum((0, 1)))
        if scale.weight is None:
            matrices.append(outer(grads, inner, pooled=False))
            offsets.append(sums.sum(-1))
            continue
        grad_matrix, products = _scaled_products(grads, inner, matrix, scale, *scratch)
        matrices.append(grad_matrix)
        offsets.append((sums * scale.weight.squeeze(-1)).sum(-1))
        if centre.is_nothing():
            products = products - sums * times_vector(matrix, block.select(mean)).unsqueeze(-1)
        weights.append(products.sum((0, 1)))
    matrix, offset = torch.cat(matrices), torch.cat(offsets)
    return MapGradients(
        _about(mean, matrix, offset, centre),
        offset,
        weight=None if scale.weight is None else torch.stack(weights).sum(0, keepdim=True),
        bias=None if scale.bias is None else torch.stack(biases).sum(0, keepdim=True),
    )


def _over_channel(values: Tensor, scale: Scale) -> Tensor:
    """Sums over the positions of each channel, ``(N, 1, K, J)``."""
    split = scale.split(values)
    return split.squeeze(-1) if split.shape[-1] == 1 else split.sum(-1)


def _scaled_products(
    grad: Tensor, x: Tensor, whitening: Tensor, scale: Scale, left: Scratch, right: Scratch
) -> tuple[Tensor, Tensor]:
    """(γ·grad)·xᵀ as ``(N, 1, K, K)``, and grad times W·x, summed over each channel, as ``(N, 1, K, J)``.

    Both come from grad·xᵀ of each channel of the groups, where channels are long enough for such matrices to be small.
    Otherwise, as in vectors, W·x is computed again.
    """
    assert scale.weight is not None
    if scale.split(x).shape[-1] < 2 * x.shape[2]:
        product = torch.mul(_product(whitening, x, left), grad, out=left(x))
        return outer(scale.times(grad, right), x, pooled=False), _over_channel(product, scale)
    channels = zip(scale.split(grad).unbind(3), scale.split(x).unbind(3), strict=True)
    matrices = torch.stack([outer(g, values, pooled=False) for g, values in channels], 2)  # N, 1, J, K, K
    products = (matrices * whitening.unsqueeze(2)).sum(-1).mT
    return (matrices * scale.weight.transpose(0, 1)).sum(2), products


def _product(matrix: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    out = scratch(x)
    if out is None:
        return matrix @ x
    multiply(matrix, x, out)
    return out
