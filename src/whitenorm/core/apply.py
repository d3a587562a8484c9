"""Last step: one affine map per group, with centring, γ and β folded into it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.blocks import Scratch, blocks, gathered, one_batch, room
from whitenorm.core.layout import Layout
from whitenorm.core.mode import may_write_in_place


class Affine(NamedTuple):
    """y = matrix @ x + offset, with ``(N or 1, G, K, K)`` and ``(N or 1, G, K)``."""

    matrix: Tensor
    offset: Tensor


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


def apply(x: Tensor, affine: Affine, scale: Scale | None, layout: Layout, like: Tensor) -> Tensor:
    """The map on ``x[N, G, K, L]``, and the scale, as a tensor of the shape and memory format of ``like``."""
    if not may_write_in_place():
        return layout.join(_scaled(affine.matrix @ x + affine.offset.unsqueeze(-1), scale), like)
    whole, y = layout.empty(like, x.dtype)
    inner, outer = Scratch(), Scratch()
    for block in blocks(x, cut_positions=scale is None):
        out = block.of(y)
        product = room(out, outer)
        multiply(block.own(affine.matrix), gathered(block.of(x), inner), product)
        offset = block.own(affine.offset).unsqueeze(-1)
        if scale is None:
            torch.add(product, offset, out=out)
        else:
            _scale_in_place(out, offset, scale)
    return layout.fill(whole, y)


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


def _scale_in_place(y: Tensor, offset: Tensor, scale: Scale) -> None:
    """y ← γ·(y + offset) + β."""
    split, offset = scale.split(y), offset.unsqueeze(-1)
    shift = offset if scale.weight is None else offset * scale.weight
    shift = shift if scale.bias is None else shift + scale.bias
    # Two passes: each is vectorised, which addcmul with broadcast operands is not.
    if scale.weight is not None:
        split.mul_(scale.weight)
    split.add_(shift)
