"""Last step back: one read of grad and x for dx."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whitenorm._runtime import Scratch
from whitenorm.ops.torch.apply import Centre, centre_of, folded, multiply, scale_of, times_vector
from whitenorm.ops.torch.blocks import Block, blocks, gathered, in_rows, room
from whitenorm.ops.types import AffineGrad


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    """(γ·W)ᵀ @ grad, and what came through the statistics of each sample and of the batch, in ``out`` if given."""
    through = joined(sample, batch)
    if through is None:
        return propagated(grad, x, whitening, weight, None, Centre(), out)
    centre = centre_of(x, whitening, through.mean)
    return propagated(grad, x, whitening, weight, through.about(centre), centre, out)


class Through(NamedTuple):
    """matrix @ (x - mean) + offset."""

    matrix: Tensor
    offset: Tensor
    mean: Tensor

    def about(self, centre: Centre) -> Through:
        """The same map of x about another centre, without a mean of its own if that is nothing."""
        if not centre.is_nothing():
            return self
        return Through(self.matrix, self.offset - times_vector(self.matrix, self.mean), self.mean)


def joined(sample: AffineGrad | None, batch: AffineGrad | None) -> Through | None:
    """Both as one map about the samples' own means, where x is smallest, however far those of the batch are."""
    maps = [_divided(linear) for linear in (sample, batch) if linear is not None]
    if len(maps) < 2:
        return maps[0] if maps else None
    (matrix, offset, mean), shared = maps
    moved = _times(shared.matrix, mean - shared.mean)
    return Through(matrix + shared.matrix, offset + shared.offset + moved, mean)


def _divided(linear: AffineGrad) -> Through:
    return Through(linear.matrix * (2 / linear.num_values), linear.offset / linear.num_values, linear.mean)


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """One matrix a group ``(1, G, K, K)`` times the samples' vectors ``(N, G, K)``."""
    return (vectors.transpose(0, 1) @ matrix[0].mT).transpose(0, 1)


def propagated(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    through: Through | None,
    centre: Centre,
    out: Tensor | None,
) -> Tensor:
    """(γ·W)ᵀ @ grad, and the map of x, centred so before the product."""
    scale, matrix = scale_of(weight, None), folded(whitening, weight)
    grads, values, scratch = in_rows(grad), in_rows(x), Scratch()
    if out is None:
        total = matrix.mT @ (gathered(grads, scratch) if scale is None else scale.times(grads, scratch))
        if through is not None:
            total = total + through.matrix @ centre.off(Block(), values, scratch) + through.offset.unsqueeze(-1)
        return total.reshape(x.shape)
    total, inner, outer = in_rows(out), Scratch(padded=True), Scratch()
    for block in blocks(values, cut_positions=scale is None):
        part = block.of(total)
        product = room(part, outer)
        above = block.of(grads) if scale is None else scale.times(block.of(grads), scratch)
        shift = None if through is None else block.select(through.offset).unsqueeze(-1)
        multiply(block.select(matrix).mT, gathered(above, inner), product, shift)
        if through is not None:
            multiply(block.select(through.matrix), centre.off(block, values, inner), product, product)
        if product is not part:
            part.copy_(product)
    return out
