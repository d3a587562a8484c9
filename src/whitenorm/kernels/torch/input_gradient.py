"""Last step back: one read of grad and x for dx."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.kernels.torch.apply import Centre, centre_of, folded, multiply, scale_of, times_vector
from whitenorm.kernels.torch.blocks import Block, blocks, empty_like, gathered, room
from whitenorm.kernels.types import Linear
from whitenorm.runtime.memory import Scratch
from whitenorm.runtime.mode import may_write_in_place


def input_gradient(
    grad: Tensor, x: Tensor, whitening: Tensor, weight: Tensor | None, own: Linear | None, batch: Linear | None
) -> Tensor:
    """(γ·W)ᵀ @ grad, and what came through the statistics of each sample and of the batch; in a tensor like x."""
    through = joined(own, batch)
    if through is None:
        return propagated(grad, x, whitening, weight, None, Centre())
    centre = centre_of(x, whitening, through.mean)
    return propagated(grad, x, whitening, weight, through.about(centre), centre)


class Through(NamedTuple):
    """matrix @ (x - mean) + offset."""

    matrix: Tensor
    offset: Tensor
    mean: Tensor

    def about(self, centre: Centre) -> Through:
        """The same map of x about another centre, without a mean of its own if that is nothing."""
        if not centre.is_nothing:
            return self
        return Through(self.matrix, self.offset - times_vector(self.matrix, self.mean), self.mean)


def joined(own: Linear | None, batch: Linear | None) -> Through | None:
    """Both as one map about the samples' own means, where x is smallest, however far those of the batch are."""
    maps = [_divided(linear) for linear in (own, batch) if linear is not None]
    if len(maps) < 2:
        return maps[0] if maps else None
    (matrix, offset, mean), shared = maps
    moved = _times(shared.matrix, mean - shared.mean)
    return Through(matrix + shared.matrix, offset + shared.offset + moved, mean)


def _divided(linear: Linear) -> Through:
    return Through(linear.matrix / linear.number, linear.offset / linear.number, linear.mean)


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """One matrix a group ``(1, G, K, K)`` times the samples' vectors ``(N, G, K)``."""
    return (vectors.transpose(0, 1) @ matrix[0].mT).transpose(0, 1)


def propagated(
    grad: Tensor, x: Tensor, whitening: Tensor, weight: Tensor | None, through: Through | None, centre: Centre
) -> Tensor:
    """(γ·W)ᵀ @ grad, and the map of x, centred so before the product."""
    scale, matrix = scale_of(weight, None), folded(whitening, weight)
    grads, values, scratch = grad.flatten(3), x.flatten(3), Scratch()
    if not may_write_in_place():
        total = matrix.mT @ (gathered(grads, scratch) if scale is None else scale.times(grads, scratch))
        if through is not None:
            total = total + through.matrix @ centre.off(Block(), values, scratch) + through.offset.unsqueeze(-1)
        return total.to(x.dtype).reshape(x.shape)
    whole = empty_like(x)
    total, inner, outer = whole.flatten(3), Scratch(padded=True), Scratch()
    for block in blocks(values, cut_positions=scale is None):
        out = block.of(total)
        product = room(out, outer)
        above = block.of(grads) if scale is None else scale.times(block.of(grads), scratch)
        multiply(block.own(matrix).mT, gathered(above, inner), product)
        if through is not None:
            multiply(block.own(through.matrix), centre.off(block, values, inner), product, add=True)
            torch.add(product, block.own(through.offset).unsqueeze(-1), out=out)
        elif product is not out:
            out.copy_(product)
    return whole
