"""Last step: one affine map per group, with γ and β folded into it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.blocks import Block, Scratch, blocks, gathered, nbytes, one_batch, room
from whitenorm.core.layout import Layout
from whitenorm.core.mode import may_write_in_place

# Deviations: what is lost below is three bits.
_FAR = 8
# Bytes: to centre fewer takes less time than to ask whether to.
_WORTH_ASKING = 2**19


class Affine(NamedTuple):
    """y = matrix @ x + offset, with ``(N or 1, G, K, K)`` and ``(N or 1, G, K)``."""

    matrix: Tensor
    offset: Tensor


class Map(NamedTuple):
    """y = matrix @ (x - mean) + offset, with ``(N or 1, G, K, K)`` and ``(N or 1, G, K)``; None for nothing to subtract
    or to add.
    """

    matrix: Tensor
    mean: Tensor | None
    offset: Tensor | None

    def folded(self) -> Map:
        """The same map, with the mean in the offset."""
        assert self.mean is not None
        return Map(self.matrix, None, fold(self.matrix, self.mean, None, self.offset).offset)


class Scale(NamedTuple):
    """γ and β where they vary within a whitened row, and so do not fold into its matrix: ``(K, L / H·W, 1)``."""

    weight: Tensor | None
    bias: Tensor | None

    def split(self, y: Tensor) -> Tensor:
        """``y[N, 1, K, L]`` as ``(N, 1, K, L / H·W, H·W)``, whose last but one dimension γ and β vary along."""
        vector = self.bias if self.weight is None else self.weight
        assert vector is not None
        channels = vector.shape[1]
        return y.view(*y.shape[:3], channels, y.shape[3] // channels)


def fold(whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None) -> Affine:
    r"""Fold :math:`y = \gamma W (x - \mu) + \beta` into :math:`y = A x + b`; γ and β are ``(G, K)``.

    Example::

        >>> matrix, offset = fold(2 * torch.eye(2), torch.tensor([1.0, 3.0]), None, None)
        >>> matrix @ torch.tensor([1.0, 4.0]) + offset
        tensor([0., 2.])
    """
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    centre = (matrix * mean.unsqueeze(-2)).sum(-1)
    return Affine(matrix, -centre if bias is None else bias - centre)


def must_centre(x: Tensor, whitening: Tensor, mean: Tensor, layout: Layout) -> bool:
    """Whether x must be centred before a product, or the mean may be folded into what is added after it.

    Folding saves a pass over x, but a mean of r deviations, which is how far whitening takes it from zero, costs the
    product a factor of r in accuracy: it is folded up to ``_FAR``. The answer depends on values, so only a CPU is
    asked, where nothing waits for it. A dual has no mean to ask about.
    """
    if x.device.type != "cpu" or not may_write_in_place() or layout.dual or nbytes(x) < _WORTH_ASKING:
        return True
    return bool((whitening * mean.unsqueeze(-2)).sum(-1).abs().max() > _FAR)


def whitened(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Scale | None,
    layout: Layout,
    like: Tensor,
) -> Tensor:
    """γ·W(x - μ) + β of ``x[N, G, K, L]``, with γ and β ``(G, K)``, as a tensor like ``like``."""
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    affine = Map(matrix, mean, None if bias is None else bias.unsqueeze(0))
    affine = affine if must_centre(x, whitening, mean, layout) else affine.folded()
    return apply(x, affine, scale, layout, like)


def apply(x: Tensor, affine: Map, scale: Scale | None, layout: Layout, like: Tensor) -> Tensor:
    """The map on ``x[N, G, K, L]``, and the scale, as a tensor of the shape and memory format of ``like``."""
    if not may_write_in_place():
        y = affine.matrix @ centred_block(Block(), x, affine.mean, layout, Scratch())
        y = y if affine.offset is None else y + affine.offset.unsqueeze(-1)
        return layout.join(_scaled(y, scale), like)
    whole, y = layout.empty(like, x.dtype)
    inner, outer = Scratch(padded=True), Scratch()
    for block in blocks(x, cut_positions=scale is None):
        out = block.of(y)
        product = room(out, outer)
        multiply(block.own(affine.matrix), centred_block(block, x, affine.mean, layout, inner), product)
        offset = None if affine.offset is None else block.own(affine.offset).unsqueeze(-1)
        if scale is not None:
            _scale_in_place(out, offset, scale)
        elif offset is not None:
            torch.add(product, offset, out=out)
        elif product is not out:
            out.copy_(product)
    return layout.fill(whole, y)


def centred_block(block: Block, x: Tensor, mean: Tensor | None, layout: Layout, scratch: Scratch) -> Tensor:
    """The block of ``x[N, G, K, L]`` without the mean.

    A dual's matrix takes off the features' mean itself; the first feature, taken off before, spares it a large one.
    """
    values = block.of(x)
    if mean is None:
        return gathered(values, scratch)
    shift = values[..., :1, :] if layout.dual else block.own(mean).unsqueeze(-1)
    return torch.sub(values, shift, out=scratch(values))


def multiply(matrix: Tensor, x: Tensor, out: Tensor, add: bool = False) -> None:
    """out ← matrix @ x, or added to out, written where out lies in memory."""
    if not (one_batch(x) and one_batch(out)):
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


def _scaled(y: Tensor, scale: Scale | None) -> Tensor:
    if scale is None:
        return y
    split = scale.split(y)
    split = split if scale.weight is None else split * scale.weight
    return (split if scale.bias is None else split + scale.bias).reshape(y.shape)


def _scale_in_place(y: Tensor, offset: Tensor | None, scale: Scale) -> None:
    """y ← γ·(y + offset) + β."""
    split, shift = scale.split(y), scale.bias
    if offset is not None:
        offset = offset.unsqueeze(-1)
        offset = offset if scale.weight is None else offset * scale.weight
        shift = offset if shift is None else offset + shift
    # Two passes: each is vectorised, which addcmul with broadcast operands is not.
    if scale.weight is not None:
        split.mul_(scale.weight)
    if shift is not None:
        split.add_(shift)
