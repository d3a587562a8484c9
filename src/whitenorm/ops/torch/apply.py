"""Third step: one affine map per group, with γ and β folded into it where they can be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import Scratch, compute_dtype, may_read_values, nbytes
from whitenorm.ops.torch.blocks import Block, blocks, gathered, in_rows, one_batch, room

# Deviations: what is lost below is three bits.
_FAR = 8
# Bytes: to centre fewer takes less time than to ask whether to.
_WORTH_ASKING = 2**19


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """γ·W(x - μ) + β of ``x[N, G, K, J, P]``, with γ and β ``(G, K, J)``, in ``out`` if it is given.

    Example::

        >>> x = torch.tensor([1.0, 4.0]).view(1, 1, 2, 1, 1)
        >>> apply(x, 2 * torch.eye(2).view(1, 1, 2, 2), torch.tensor([[[1.0, 3.0]]]), None, None, None).flatten()
        tensor([0., 2.])
    """
    return whitened(x, whitening, mean, centre_of(x, whitening, mean), weight, bias, out)


class Centre(NamedTuple):
    """What is taken off x before a product: the mean, or, of a dual, the first feature, or nothing.

    A dual's matrix takes off the features' mean itself; the first one, taken off before, spares it a large one.
    """

    mean: Tensor | None = None
    first: bool = False

    def is_nothing(self) -> bool:
        return self.mean is None and not self.first

    def off(self, block: Block, x: Tensor, scratch: Scratch) -> Tensor:
        """The block of ``x[N, G, K, L]``, centred, in the dtype of computation."""
        values = block.of(x)
        if self.is_nothing():
            return gathered(values, scratch)
        wide = compute_dtype(x.dtype)
        shift = values[..., :1, :].to(wide) if self.mean is None else block.select(self.mean).unsqueeze(-1)
        return torch.sub(values, shift, out=scratch(values, wide))


def centre_of(x: Tensor, whitening: Tensor, mean: Tensor | None) -> Centre:
    """Whether x is centred before a product, or the mean folded into what is added after it.

    Folding saves a pass over x, but a mean of r deviations, which is how far whitening takes it from zero, costs the
    product a factor of r in accuracy: it is folded up to ``_FAR``. The answer depends on values, so only a CPU is
    asked, where nothing waits for it.
    """
    if mean is None or torch.is_grad_enabled() or not may_read_values(mean) or nbytes(x) < _WORTH_ASKING:
        return Centre(mean)
    far = bool((whitening * mean.unsqueeze(-2)).sum(-1).abs().max() > _FAR)
    return Centre(mean if far else None)


class Scale(NamedTuple):
    """γ and β where they vary within a whitened row, and so do not fold into its matrix: ``(K, J, 1)``."""

    weight: Tensor | None
    bias: Tensor | None

    def split(self, y: Tensor) -> Tensor:
        """``y[N, 1, K, L]`` as ``(N, 1, K, J, P)``, whose last but one dimension γ and β vary along."""
        vector = self.bias if self.weight is None else self.weight
        assert vector is not None
        channels = vector.shape[1]
        return y.view(*y.shape[:3], channels, y.shape[3] // channels)

    def times(self, grad: Tensor, scratch: Scratch) -> Tensor:
        """γ·grad, in the dtype of computation."""
        wide = compute_dtype(grad.dtype)
        if self.weight is None:
            return grad.to(wide)
        out = scratch(grad, wide)
        if out is None:
            return (self.split(grad) * self.weight).reshape(grad.shape)
        torch.mul(self.split(grad), self.weight, out=self.split(out))
        return out


def scale_of(weight: Tensor | None, bias: Tensor | None) -> Scale | None:
    """γ and β as a scale, or None where there is nothing to scale by, or it folds."""
    vector = bias if weight is None else weight
    if vector is None or vector.shape[2] == 1:
        return None
    return Scale(*[None if tensor is None else tensor.squeeze(0).unsqueeze(-1) for tensor in (weight, bias)])


def folded(whitening: Tensor, weight: Tensor | None) -> Tensor:
    """γ·W where each feature has a single γ, otherwise W."""
    return whitening if weight is None or weight.shape[2] > 1 else weight * whitening


def whitened(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    centre: Centre,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """γ·W(x - μ) + β, with x centred so before the product."""
    scale = scale_of(weight, bias)
    matrix = folded(whitening, weight)
    offset = None if bias is None or scale is not None else bias.squeeze(-1).unsqueeze(0)
    if mean is not None and centre.is_nothing():
        offset = _folded_mean(matrix, mean, offset)
    return _mapped(x, matrix, centre, offset, scale, out)


def times_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    """matrix @ vector of each group: ``(B, G, K, K)`` and ``(B, G, K)``."""
    return (matrix * vector.unsqueeze(-2)).sum(-1)


def _folded_mean(matrix: Tensor, mean: Tensor, offset: Tensor | None) -> Tensor:
    centre = times_vector(matrix, mean)
    return -centre if offset is None else offset - centre


def _mapped(
    x: Tensor, matrix: Tensor, centre: Centre, offset: Tensor | None, scale: Scale | None, out: Tensor | None
) -> Tensor:
    """matrix @ (x - centre) + offset, scaled."""
    values = in_rows(x)
    if out is None:
        y = matrix @ centre.off(Block(), values, Scratch())
        y = y if offset is None else y + offset.unsqueeze(-1)
        return _scaled(y, scale).reshape(x.shape)
    y, inner, outer = in_rows(out), Scratch(padded=True), Scratch()
    for block in blocks(values, cut_positions=scale is None):
        part = block.of(y)
        product = room(part, outer)
        shift = None if offset is None else block.select(offset).unsqueeze(-1)
        if scale is None:
            multiply(block.select(matrix), centre.off(block, values, inner), product, shift)
        else:
            multiply(block.select(matrix), centre.off(block, values, inner), product)
            _scale_in_place(product, shift, scale)
        if product is not part:
            part.copy_(product)
    return out


def multiply(matrix: Tensor, x: Tensor, out: Tensor, start: Tensor | None = None) -> None:
    """out ← matrix @ x + start, written where out lies in memory; the start may be out itself."""
    if not (one_batch(x) and one_batch(out)):
        product = matrix @ x
        out.copy_(product if start is None else product + start)
        return
    size = x.shape[:2]
    matrices = matrix.expand(*size, -1, -1).flatten(0, 1)
    x, result = x.flatten(0, 1), out.flatten(0, 1)
    first = None if start is None else result if start is out else start.expand(*size, -1, -1).flatten(0, 1)
    if result.stride(-1) > result.stride(-2):
        x, matrices, result, first = matrices.mT, x.mT, result.mT, None if first is None else first.mT
    if first is None:
        torch.bmm(matrices, x, out=result)
    else:
        torch.baddbmm(first, matrices, x, out=result)


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
