"""The four steps that read x: moments, apply, map_gradients and input_gradient, in torch operations for every device.

On a CPU, large inputs are cut into blocks that stay in the cache while several operations pass over them, and half
precision becomes float32 one block at a time. Where ``out`` is None, results are computed by plain operations, which
autograd, compilers and transforms can record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import compute_dtype, may_read_values, may_write_in_place
from whitenorm.ops.types import AffineGrad, MapGradients, Moments, Statistics

if TYPE_CHECKING:
    from whitenorm.ops.torch.scaled import Scale

# About the second-level caches of two cores: large enough to hide the cost of calls, and small enough to stay, with a
# copy, in the cache behind them.
BLOCK_BYTES = 2**22
# Smaller intermediate results are allocated anew: it takes less time than looking for a buffer.
BUFFER_BYTES = 2**17
# The mean, in deviations after whitening, up to which it is folded into the offset of a map.
FAR = 8
# Of smaller inputs, the mean is always subtracted: it takes less time than to ask whether it is far.
FOLDING_BYTES = 2**19


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    r"""Compute means and covariances of ``x[N, G, K, J, P]``.

    .. math:: \mu = \frac1m \sum_i x_i, \qquad \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T

    The data are centred before the product, because squares of an offset would drown the covariance in rounding errors.
    Each sample or block is centred by its own mean, so that x is read once; the covariance between their means is added
    when they are pooled.

    Example::

        >>> (mean, cov, num_values), _ = moments(torch.randn(4, 2, 3, 1, 25), sample=True, batch=False)
        >>> mean.shape, cov.shape, num_values
        (torch.Size([4, 2, 3]), torch.Size([4, 2, 3, 3]), 25)
        >>> moments(torch.randn(4, 2, 3, 1, 25), sample=False, batch=True).batch.num_values
        100
    """
    x = as_rows(x)
    if not sample:
        return Statistics(None, _batch_moments(x))
    per_sample = sample_moments(x)
    if not batch:
        return Statistics(per_sample, None)
    mean, cov = _pool(per_sample.mean, per_sample.cov.mean(0, keepdim=True))
    # Not len(), which would tie an exported graph to this batch size.
    return Statistics(per_sample, Moments(mean, cov, per_sample.num_values * per_sample.mean.shape[0]))


def sample_moments(x: Tensor) -> Moments:
    """Compute the moments of each sample of ``x[N, G, K, L]``."""
    buffers, num_values, dtype = Buffers(), x.shape[3], compute_dtype(x.dtype)
    means, covs = [], []
    for block in cut(x, buffers, cut_positions=False):
        part = block.of(x)
        mean = part.mean(-1, keepdim=True, dtype=dtype)
        centred = torch.sub(part, mean, out=buffers.get("centred", part, dtype, padded=True))
        means.append(mean.squeeze(-1))
        covs.append(centred @ centred.mT)
    return Moments(_concatenate(means), _concatenate(covs).div_(num_values), num_values)


def _batch_moments(x: Tensor) -> Moments:
    """Compute the moments of all samples of ``x[N, G, K, L]`` together."""
    buffers, dtype = Buffers(), compute_dtype(x.dtype)
    parts = _cut_run(x, buffers)
    blocks = cut(parts, buffers, cut_positions=False)
    num_values = parts.shape[0] * parts.shape[3]
    if len(blocks) == 1:
        mean = parts.mean((0, 3), keepdim=True, dtype=dtype)
        centred = torch.sub(parts, mean, out=buffers.get("centred", parts, dtype))
        return Moments(mean.squeeze(-1), outer(centred, centred, pooled=True) / num_values, num_values)
    means, totals = [], []
    for block in blocks:
        part = block.of(parts)
        mean = part.mean(-1, keepdim=True, dtype=dtype)
        centred = torch.sub(part, mean, out=buffers.get("centred", part, dtype, padded=True))
        means.append(mean.squeeze(-1))
        totals.append(outer(centred, centred, pooled=True))
    mean, cov = _pool(torch.cat(means), torch.stack(totals).sum(0) / num_values)
    return Moments(mean, cov, num_values)


def _pool(means: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of equally large parts together: within the parts, and between their means."""
    mean = means.mean(0, keepdim=True)
    between = (means - mean).permute(1, 2, 0)  # G, K, B
    return mean, within + between @ between.mT / means.shape[0]


def _cut_run(x: Tensor, buffers: Buffers) -> Tensor:
    """Cut one long run of rows ``(1, G, K, L)`` into equal parts of about a block's size, if its length allows."""
    if x.shape[0] > 1 or not buffers.in_place or x.nbytes <= BLOCK_BYTES // 2:
        return x
    count = next(count for count in range(len(cut(x, buffers)), 0, -1) if x.shape[3] % count == 0)
    return x.squeeze(0).unflatten(-1, (count, -1)).movedim(-2, 0) if count > 1 else x


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Compute γ·W(x - μ) + β of ``x[N, G, K, 1, P]``, with γ and β ``(G, K, 1)``.

    Example::

        >>> x = torch.tensor([1.0, 4.0]).view(1, 1, 2, 1, 1)
        >>> apply(x, 2 * torch.eye(2).view(1, 1, 2, 2), torch.tensor([[[1.0, 3.0]]]), None, None, None).flatten()
        tensor([0., 2.])
    """
    matrix = whitening if weight is None else weight * whitening
    offset, shift = None if bias is None else bias.unsqueeze(0), None
    if mean is not None and is_far(x, whitening, mean):
        shift = mean.unsqueeze(-1)
    elif mean is not None:
        folded = matrix @ mean.unsqueeze(-1)
        offset = -folded if offset is None else offset - folded
    return sum_maps([Term(matrix, x, shift)], offset, None, out)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """Sum grad·(x - μ)ᵀ and grad over positions and, for one matrix of all samples, over these."""
    far = is_far(x, whitening, mean)
    shift = mean.unsqueeze(-1) if far else None
    grad, x, buffers, pooled = as_rows(grad), as_rows(x), Buffers(), whitening.shape[0] == 1
    matrices, offsets = [], []
    for block in cut(x, buffers):
        part = as_batch(block.of(grad), buffers, "grad")
        matrices.append(outer(part, load(x, block, buffers, "centred", shift), pooled))
        offsets.append(part.sum((0, 3)).unsqueeze(0) if pooled else part.sum(3))
    if pooled and len(matrices) > 1:
        matrices, offsets = [torch.stack(matrices).sum(0)], [torch.stack(offsets).sum(0)]
    matrix, offset = _concatenate(matrices), _concatenate(offsets)
    return MapGradients(matrix if far else matrix - offset.unsqueeze(-1) * mean.unsqueeze(-2), offset)


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    """Compute (γ·W)ᵀ @ grad plus the gradients that reach x through the statistics."""
    first = Term((whitening if weight is None else weight * whitening).mT, grad)
    return add_affine_grads(first, x, whitening, sample, batch, out)


def add_affine_grads(
    first: Term,
    x: Tensor,
    whitening: Tensor,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    """Compute a term plus the gradients that reach x through the statistics."""
    if sample is None and batch is None:
        return sum_maps([first], None, None, out)
    matrix, offset, mean = _join(sample, batch)
    shift = None
    if is_far(x, whitening, mean):
        shift = mean.unsqueeze(-1)
    else:
        offset = offset - matrix @ mean.unsqueeze(-1)
    return sum_maps([first, Term(matrix, x, shift)], offset, None, out)


def _join(sample: AffineGrad | None, batch: AffineGrad | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix, offset ``(B, G, K, 1)`` and mean of one map ``matrix @ (x - mean) + offset``.

    Both together are a map about the samples' own means, where x is smallest, however far from them the batch's mean
    is.
    """
    first = batch if sample is None else sample
    assert first is not None
    matrix, offset = first.matrix * (2 / first.num_values), first.offset.unsqueeze(-1) / first.num_values
    if sample is None or batch is None:
        return matrix, offset, first.mean
    shared = batch.matrix * (2 / batch.num_values)
    # Not shared @ vectors, which would copy the matrices for each sample.
    moved = ((sample.mean - batch.mean).transpose(0, 1) @ shared[0].mT).transpose(0, 1)
    return matrix + shared, offset + (batch.offset / batch.num_values + moved).unsqueeze(-1), sample.mean


def is_far(x: Tensor, whitening: Tensor, mean: Tensor) -> bool:
    """Return whether x must be centred before a product, instead of folding the mean into what is added after it.

    Folding saves a pass over x, but a mean of r deviations after whitening costs the product a factor of r in accuracy.
    The answer depends on values, so that only a CPU is asked, where nothing waits for it; others always centre.
    """
    if torch.is_grad_enabled() or not may_read_values(mean) or x.nbytes < FOLDING_BYTES:
        return True
    return bool((whitening @ mean.unsqueeze(-1)).abs().max() > FAR)


class Term(NamedTuple):
    """One summand of :func:`sum_maps`: ``matrix @ (x - shift)``, or ``matrix @ (γ·x)`` with a scale."""

    matrix: Tensor
    x: Tensor
    shift: Tensor | None = None
    scale: Scale | None = None


def sum_maps(terms: list[Term], offset: Tensor | None, scale: Scale | None, out: Tensor | None) -> Tensor:
    """Compute the sum of the terms and the offset ``(B, G, K, 1)``, then γ·y + β with a scale.

    The result has the shape ``[N, G, K, J, P]`` of the terms' x, and is written to ``out`` if that is given.
    """
    shape, buffers = terms[0].x.shape, Buffers()
    rows = [as_rows(term.x) for term in terms]
    cut_positions = scale is None and terms[0].scale is None
    if out is None:
        products = [
            term.matrix @ load(x, WHOLE, buffers, "term", term.shift, term.scale)
            for term, x in zip(terms, rows, strict=True)
        ]
        y = products[0] if len(products) == 1 else products[0] + products[1]
        y = y if offset is None else y + offset
        return (y if scale is None else scale.apply(y)).reshape(shape)
    result = as_rows(out)
    for block in cut(rows[-1], buffers, cut_positions):
        part = block.of(result)
        product = buffers.for_output(part)
        shift = None if offset is None else block.select(offset)
        start = shift if scale is None else None
        for term, x in zip(terms, rows, strict=True):
            values = load(x, block, buffers, "term", term.shift, term.scale)
            multiply(block.select(term.matrix), values, product, start)
            start = product
        if scale is not None:
            scale.apply_(product, shift)
        if product is not part:
            part.copy_(product)
    return out


def multiply(matrix: Tensor, x: Tensor, out: Tensor, start: Tensor | None = None) -> None:
    """Compute out ← matrix @ x + start; the start may be out itself."""
    if not (is_batch(x) and is_batch(out)):
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


def outer(a: Tensor, b: Tensor, pooled: bool) -> Tensor:
    """Return the sum of a·bᵀ over positions and, if ``pooled``, over samples: ``(N or 1, G, K, K)``."""
    product = a @ b.mT
    return product.sum(0, keepdim=True) if pooled and product.shape[0] != 1 else product


class Block(NamedTuple):
    """A range of samples and a range of positions; None stands for all."""

    samples: slice | None = None
    positions: slice | None = None

    def of(self, x: Tensor) -> Tensor:
        """Return the block of ``x[N, G, K, L]``."""
        x = x if self.samples is None else x[self.samples]
        return x if self.positions is None else x[..., self.positions]

    def select(self, statistic: Tensor) -> Tensor:
        """Return the entries of a statistic ``(N or 1, ...)`` that belong to the block's samples."""
        return statistic if self.samples is None or statistic.shape[0] == 1 else statistic[self.samples]


WHOLE = Block()


def cut(x: Tensor, buffers: Buffers, cut_positions: bool = True) -> list[Block]:
    """Cut ``x[N, G, K, L]`` into blocks of whole samples; a single sample is cut along its positions, if allowed."""
    n, _, _, positions = x.shape
    size = x.numel() * compute_dtype(x.dtype).itemsize
    if not buffers.in_place or x.device.type != "cpu" or size <= BLOCK_BYTES:
        return [WHOLE]
    if n == 1:
        step = max(1, positions * BLOCK_BYTES // size) if cut_positions else positions
        return [Block(positions=slice(start, start + step)) for start in range(0, positions, step)]
    step = max(1, n * BLOCK_BYTES // size)
    return [Block(slice(start, start + step)) for start in range(0, n, step)]


class Buffers:
    """Memory for the intermediate results of a block, used again for the next block.

    On a CPU, fresh memory costs more than the arithmetic on a block.
    """

    def __init__(self) -> None:
        self.in_place = may_write_in_place()
        self._buffers: dict[str, Tensor] = {}

    def get(self, name: str, like: Tensor, dtype: torch.dtype, padded: bool = False) -> Tensor | None:
        """Return a tensor of the shape of ``like`` to pass as ``out``, or None where a new result is as good.

        Padded rows are never a large power of two apart: such rows share few places in a cache, which slows down
        products that read them. Batched products cannot be written there directly.
        """
        if not self.in_place or like.device.type != "cpu" or like.nbytes < BUFFER_BYTES:
            return None
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != dtype:
            self._buffers[name] = buffer = _empty_matrices(like, dtype, padded)
        return buffer

    def for_output(self, out: Tensor) -> Tensor:
        """Return where to write products meant for ``out``: there, or elsewhere if its layout or dtype does not fit."""
        dtype = compute_dtype(out.dtype)
        if out.dtype == dtype and is_batch(out):
            return out
        buffer = self.get("output", out, dtype)
        if buffer is not None:
            return buffer
        return out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)


def _empty_matrices(like: Tensor, dtype: torch.dtype, padded: bool) -> Tensor:
    """Return an empty batch of matrices, in rows or columns as ``like``."""
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return like.mT.new_empty(like.mT.shape, dtype=dtype).mT
    length = like.shape[-1]
    padding = 16 if padded and length * dtype.itemsize % 1024 == 0 else 0
    return like.new_empty(*like.shape[:-1], length + padding, dtype=dtype)[..., :length]


def load(
    x: Tensor, block: Block, buffers: Buffers, name: str, shift: Tensor | None = None, scale: Scale | None = None
) -> Tensor:
    """Return a block of ``x[N, G, K, L]`` in the dtype of computation: x - shift, γ·x with a scale, or x itself."""
    part = block.of(x)
    if shift is not None:
        dtype = compute_dtype(x.dtype)
        # A shift of one column belongs to all positions.
        shift = block.of(shift) if shift.shape[-1] > 1 else block.select(shift)
        return torch.sub(part, shift.to(dtype), out=buffers.get(name, part, dtype, padded=True))
    return as_batch(part if scale is None else scale.multiply(part, buffers), buffers, name)


def as_batch(x: Tensor, buffers: Buffers, name: str) -> Tensor:
    """Return x in the dtype of computation, copied if its samples and groups are not one batch of matrices."""
    dtype = compute_dtype(x.dtype)
    if x.dtype == dtype and (not buffers.in_place or is_batch(x)):
        return x
    buffer = buffers.get(name, x, dtype, padded=name == "term")
    return x.to(dtype) if buffer is None else buffer.copy_(x)


def as_rows(x: Tensor) -> Tensor:
    """Return ``x[N, G, K, J, P]`` as ``[N, G, K, L]``: one row per feature."""
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4])


def is_batch(x: Tensor) -> bool:
    """Return whether samples and groups are one batch dimension without a copy."""
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
