"""The four steps that read x: moments, apply, map_gradients and input_gradient, in torch operations for every device.

On a CPU, large inputs are processed in blocks that stay in the cache while several operations pass over them, and half
precision becomes float32 one block at a time. Where ``out`` is None, results are computed by plain operations, which
autograd, compilers and transforms can record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import compute_dtype, may_read_values, may_write_in_place
from whitenorm.ops.torch.solve import combine_affine_grads
from whitenorm.ops.types import AffineGrad, MapGradients, Moments, Statistics

if TYPE_CHECKING:
    from whitenorm.ops.torch.scaled import Scale

# About the second-level caches of two cores: large enough to hide the cost of calls, and small enough that a block and
# a copy of it fit the third-level cache.
BLOCK_BYTES = 2**22
# Smaller intermediate results are newly allocated, which takes less time than finding a buffer.
BUFFER_BYTES = 2**17
# Smaller inputs are always centred, which takes less time than finding out whether they need to be.
FOLDING_BYTES = 2**19
# A mean of up to this many deviations after whitening is folded into the offset of a map.
FOLDING_DEVIATIONS = 8


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
    rows = flatten_features(x)
    if not sample:
        return Statistics(None, _batch_moments(rows))
    per_sample = _sample_moments(rows)
    if not batch:
        return Statistics(per_sample, None)
    return Statistics(per_sample, pool_samples(per_sample))


def pool_samples(sample: Moments) -> Moments:
    """Return the moments of all samples together, from those of each."""
    mean, cov = _pool(sample.mean, sample.cov.mean(0, keepdim=True))
    # Not len(), which would tie an exported graph to this batch size.
    return Moments(mean, cov, sample.num_values * sample.mean.shape[0])


def _sample_moments(x: Tensor) -> Moments:
    """Compute the moments of each sample of ``x[N, G, K, L]``."""
    workspace, num_values = Workspace(x), x.shape[3]
    means, covs = [], []
    for block in workspace.blocks(x, split_positions=False):
        mean, centred = workspace.centre(block.take(x))
        means.append(mean)
        covs.append(centred @ centred.mT)
    return Moments(_concatenate(means), _concatenate(covs).div_(num_values), num_values)


def _batch_moments(x: Tensor) -> Moments:
    """Compute the moments of all samples of ``x[N, G, K, L]`` together."""
    workspace = Workspace(x)
    parts = _split_long_rows(x, workspace)
    blocks = workspace.blocks(parts, split_positions=False)
    num_values = parts.shape[0] * parts.shape[3]
    if len(blocks) == 1:
        mean = parts.mean((0, 3), keepdim=True, dtype=workspace.dtype)
        centred = torch.sub(parts, mean, out=workspace.buffer("centred", parts))
        return Moments(mean.squeeze(-1), sum_outer(centred, centred, pooled=True) / num_values, num_values)
    means, sums = [], []
    for block in blocks:
        mean, centred = workspace.centre(block.take(parts))
        means.append(mean)
        sums.append(sum_outer(centred, centred, pooled=True))
    mean, cov = _pool(torch.cat(means), torch.stack(sums).sum(0) / num_values)
    return Moments(mean, cov, num_values)


def _pool(means: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of equally large parts together, from the covariance within and between the parts."""
    mean = means.mean(0, keepdim=True)
    between = (means - mean).permute(1, 2, 0)  # G, K, N
    return mean, within + between @ between.mT / means.shape[0]


def _split_long_rows(x: Tensor, workspace: Workspace) -> Tensor:
    """Split the rows of a single sample ``(1, G, K, L)`` into equal parts of about a block's size, where L allows."""
    if x.shape[0] > 1 or not workspace.in_place or x.nbytes <= BLOCK_BYTES // 2:
        return x
    most = len(workspace.blocks(x))
    count = next(count for count in range(most, 0, -1) if x.shape[3] % count == 0)
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
    if mean is not None and needs_centring(x, whitening, mean):
        shift = mean.unsqueeze(-1)
    elif mean is not None:
        mapped_mean = matrix @ mean.unsqueeze(-1)
        offset = -mapped_mean if offset is None else offset - mapped_mean
    return sum_maps([Term(matrix, x, shift)], offset, None, out)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """Sum grad·(x - μ)ᵀ and grad over positions and, where all samples share a matrix, over samples."""
    centre = needs_centring(x, whitening, mean)
    shift = mean.unsqueeze(-1) if centre else None
    grad, x, pooled = flatten_features(grad), flatten_features(x), whitening.shape[0] == 1
    workspace = Workspace(x)
    matrices, offsets = [], []
    for block in workspace.blocks(x):
        grad_block = workspace.as_batched(block.take(grad), "grad")
        matrices.append(sum_outer(grad_block, workspace.load(block, x, "centred", shift), pooled))
        offsets.append(grad_block.sum((0, 3)).unsqueeze(0) if pooled else grad_block.sum(3))
    if pooled and len(matrices) > 1:
        matrices, offsets = [torch.stack(matrices).sum(0)], [torch.stack(offsets).sum(0)]
    matrix, offset = _concatenate(matrices), _concatenate(offsets)
    return MapGradients(matrix if centre else matrix - offset.unsqueeze(-1) * mean.unsqueeze(-2), offset)


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
    direct = Term((whitening if weight is None else weight * whitening).mT, grad)
    return add_affine_grads(direct, x, whitening, sample, batch, out)


def add_affine_grads(
    direct: Term,
    x: Tensor,
    whitening: Tensor,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    """Compute the direct gradient, a term, plus the gradients that reach x through the statistics."""
    if sample is None and batch is None:
        return sum_maps([direct], None, None, out)
    matrix, offset, mean = combine_affine_grads(sample, batch)
    shift = None
    if needs_centring(x, whitening, mean):
        shift = mean.unsqueeze(-1)
    else:
        offset = offset - matrix @ mean.unsqueeze(-1)
    return sum_maps([direct, Term(matrix, x, shift)], offset, None, out)


def needs_centring(x: Tensor, whitening: Tensor, mean: Tensor) -> bool:
    """Return whether the mean must be subtracted from x, rather than folded into the offset that is added afterwards.

    Folding saves a pass over x, but a mean of r deviations after whitening costs the product a factor of r in accuracy.
    The answer depends on values. Reading them would stall a GPU, so that other devices than CPUs always centre.
    """
    if torch.is_grad_enabled() or not may_read_values(mean) or x.nbytes < FOLDING_BYTES:
        return True
    return bool((whitening @ mean.unsqueeze(-1)).abs().max() > FOLDING_DEVIATIONS)


class Term(NamedTuple):
    """One summand of :func:`sum_maps`: ``matrix @ (x - shift)``, or ``matrix @ (γ·x)`` with a scale."""

    matrix: Tensor
    x: Tensor
    shift: Tensor | None = None
    scale: Scale | None = None


def sum_maps(terms: list[Term], offset: Tensor | None, scale: Scale | None, out: Tensor | None) -> Tensor:
    """Compute the sum of one or two terms and the offset ``(B, G, K, 1)``, then γ·y + β with a scale.

    The result has the shape ``[N, G, K, J, P]`` of the terms' x, and is written to ``out`` if that is given.
    """
    shape = terms[0].x.shape
    rows = [flatten_features(term.x) for term in terms]
    workspace = Workspace(rows[0])
    if out is None:
        products = [
            term.matrix @ workspace.load(WHOLE, x, "term", term.shift, term.scale)
            for term, x in zip(terms, rows, strict=True)
        ]
        y = products[0] if len(products) == 1 else products[0] + products[1]
        y = y if offset is None else y + offset
        return (y if scale is None else scale.apply(y)).reshape(shape)
    out_rows = flatten_features(out)
    has_scale = scale is not None or terms[0].scale is not None
    for block in workspace.blocks(rows[-1], split_positions=not has_scale):
        out_block = block.take(out_rows)
        total = workspace.output_buffer(out_block)
        block_offset = None if offset is None else block.take_samples(offset)
        start = block_offset if scale is None else None
        for term, x in zip(terms, rows, strict=True):
            x_block = workspace.load(block, x, "term", term.shift, term.scale)
            multiply_into(total, block.take_samples(term.matrix), x_block, start)
            start = total
        if scale is not None:
            scale.apply_(total, block_offset)
        if total is not out_block:
            out_block.copy_(total)
    return out


def multiply_into(out: Tensor, matrix: Tensor, x: Tensor, start: Tensor | None = None) -> None:
    """Compute out ← matrix @ x + start, where the start may be out itself."""
    if not (is_batched(x) and is_batched(out)):
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


def sum_outer(a: Tensor, b: Tensor, pooled: bool) -> Tensor:
    """Return the sum of a·bᵀ over positions and, if ``pooled``, over samples: ``(N or 1, G, K, K)``."""
    product = a @ b.mT
    return product.sum(0, keepdim=True) if pooled and product.shape[0] != 1 else product


class Block(NamedTuple):
    """A range of samples and a range of positions of ``x[N, G, K, L]``; None means all."""

    samples: slice | None = None
    positions: slice | None = None

    def take(self, x: Tensor) -> Tensor:
        """Return the block of ``x[N, G, K, L]``."""
        x = x if self.samples is None else x[self.samples]
        return x if self.positions is None else x[..., self.positions]

    def take_samples(self, statistic: Tensor) -> Tensor:
        """Return the entries of a statistic ``(N or 1, ...)`` for the samples of the block."""
        return statistic if self.samples is None or statistic.shape[0] == 1 else statistic[self.samples]


WHOLE = Block()


class Workspace:
    """What a pass over x computes with: its dtype, its blocks, and memory that each block uses again.

    On a CPU, fresh memory costs more than the arithmetic on a block. Buffers are found by a name, one per intermediate
    result of a pass.
    """

    def __init__(self, x: Tensor) -> None:
        self.dtype = compute_dtype(x.dtype)
        self.in_place = may_write_in_place()
        self._buffers: dict[str, Tensor] = {}

    def blocks(self, x: Tensor, split_positions: bool = True) -> list[Block]:
        """Return blocks of whole samples of ``x[N, G, K, L]``; a single sample is split along positions, if allowed."""
        n, _, _, positions = x.shape
        size = x.numel() * self.dtype.itemsize
        if not self.in_place or x.device.type != "cpu" or size <= BLOCK_BYTES:
            return [WHOLE]
        if n == 1:
            step = max(1, positions * BLOCK_BYTES // size) if split_positions else positions
            return [Block(positions=slice(start, start + step)) for start in range(0, positions, step)]
        step = max(1, n * BLOCK_BYTES // size)
        return [Block(slice(start, start + step)) for start in range(0, n, step)]

    def buffer(self, name: str, like: Tensor, padded: bool = False) -> Tensor | None:
        """Return a tensor of the shape of ``like`` to pass as ``out``, or None where a new result is as good.

        Padded rows are never a multiple of 1024 bytes apart: such rows share few places in a cache, which slows down
        products that read them. Batched products cannot be written to padded rows directly.
        """
        if not self.in_place or like.device.type != "cpu" or like.nbytes < BUFFER_BYTES:
            return None
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != like.shape:
            self._buffers[name] = buffer = _empty_matrices(like, self.dtype, padded)
        return buffer

    def output_buffer(self, out: Tensor) -> Tensor:
        """Return ``out``, or a buffer to write products to if the strides or dtype of ``out`` do not fit."""
        if out.dtype == self.dtype and is_batched(out):
            return out
        buffer = self.buffer("output", out)
        if buffer is not None:
            return buffer
        return out if out.dtype == self.dtype else torch.empty_like(out, dtype=self.dtype)

    def load(
        self, block: Block, x: Tensor, name: str, shift: Tensor | None = None, scale: Scale | None = None
    ) -> Tensor:
        """Return a block of x, minus a shift or times γ if given, as the right side of a batched product."""
        x_block = block.take(x)
        if shift is not None:
            # A shift of one column is the same at all positions.
            shift = block.take(shift) if shift.shape[-1] > 1 else block.take_samples(shift)
            return torch.sub(x_block, shift.to(self.dtype), out=self.buffer(name, x_block, padded=True))
        return self.as_batched(x_block if scale is None else scale.multiply(x_block, self), name)

    def as_batched(self, x: Tensor, name: str) -> Tensor:
        """Return x in the dtype of computation, copied if its samples and groups are not one batch of matrices."""
        if x.dtype == self.dtype and (not self.in_place or is_batched(x)):
            return x
        buffer = self.buffer(name, x, padded=name == "term")
        return x.to(self.dtype) if buffer is None else buffer.copy_(x)

    def centre(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of each row of ``x[N, G, K, L]`` as ``(N, G, K)``, and x minus it."""
        mean = x.mean(-1, keepdim=True, dtype=self.dtype)
        return mean.squeeze(-1), torch.sub(x, mean, out=self.buffer("centred", x, padded=True))


def _empty_matrices(like: Tensor, dtype: torch.dtype, padded: bool) -> Tensor:
    """Return an empty batch of matrices, row-major or column-major as ``like``."""
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return like.mT.new_empty(like.mT.shape, dtype=dtype).mT
    length = like.shape[-1]
    padding = 16 if padded and length * dtype.itemsize % 1024 == 0 else 0
    return like.new_empty(*like.shape[:-1], length + padding, dtype=dtype)[..., :length]


def flatten_features(x: Tensor) -> Tensor:
    """Return ``x[N, G, K, J, P]`` as ``[N, G, K, L]``: one row per feature."""
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4])


def is_batched(x: Tensor) -> bool:
    """Return whether samples and groups can be viewed as one batch dimension."""
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
