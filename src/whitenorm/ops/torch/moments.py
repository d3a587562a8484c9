"""First step: mean and covariance of each group, per sample or over the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm._runtime import Scratch, compute_dtype
from whitenorm.ops.torch.blocks import blocks, in_rows
from whitenorm.ops.types import Moments, Statistics


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    r"""Means and covariances of ``x[N, G, K, J, P]``: each sample's ``own``, and those of the ``batch``.

    .. math:: \mu = \frac1m \sum_i x_i, \qquad \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T

    The data are centred before the product: squares of an offset would drown the covariance in rounding errors. Each
    part is centred by its own mean, so that one read of x serves both moments; pooling adds what is between the parts.

    Example::

        >>> (mean, cov, num_values), _ = moments(torch.randn(4, 2, 3, 1, 25), sample=True, batch=False)
        >>> mean.shape, cov.shape, num_values
        (torch.Size([4, 2, 3]), torch.Size([4, 2, 3, 3]), 25)
        >>> moments(torch.randn(4, 2, 3, 1, 25), sample=False, batch=True).batch.num_values
        100
    """
    x = in_rows(x)
    if not sample:
        return Statistics(None, measure(x, pooled=True))
    per_sample = measure(x, pooled=False)
    return Statistics(per_sample, _over_batch(per_sample) if batch else None)


def measure(x: Tensor, pooled: bool, over: int = -1) -> Moments:
    """Of ``x[N, G, K, L]``, over the positions or, of a dual, -2, the features; and with ``pooled`` the samples too."""
    parts = _parts(x) if pooled else x
    number, wide = parts.shape[over], compute_dtype(x.dtype)
    cut = blocks(parts, cut_positions=False)
    scratch = Scratch(padded=True)
    if pooled and len(cut) == 1:
        return _at_once(parts, scratch)
    means, covs = [], []
    for block in cut:
        part = block.of(parts)
        mean = part.mean(over, keepdim=True, dtype=wide)
        centred = torch.sub(part, mean, out=scratch(part, wide))
        means.append(mean.squeeze(-1) if over == -1 else mean.new_zeros(part.shape[:3]))
        covs.append(outer(centred, centred, pooled))
    mean = means[0] if len(means) == 1 else torch.cat(means)
    if not pooled:
        return Moments(mean, (covs[0] if len(covs) == 1 else torch.cat(covs)).div_(number), number)
    total = covs[0] if len(covs) == 1 else torch.stack(covs).sum(0)
    # Not len(), which would tie an exported graph to this batch size.
    number = number * mean.shape[0]
    return Moments(*_joined(mean, total / number), number)


def _at_once(x: Tensor, scratch: Scratch) -> Moments:
    """Of a whole batch, where it is no longer in reach of a cache, or small enough to stay in it."""
    wide, number = compute_dtype(x.dtype), x.shape[0] * x.shape[3]
    mean = x.mean((0, 3), keepdim=True, dtype=wide)
    centred = torch.sub(x, mean, out=scratch(x, wide))
    return Moments(mean.squeeze(-1), outer(centred, centred, pooled=True) / number, number)


def outer(a: Tensor, b: Tensor, pooled: bool) -> Tensor:
    """The sum over positions, and with ``pooled`` over samples, of a·bᵀ: ``(N or 1, G, K, K)``."""
    product = a @ b.mT
    return product.sum(0, keepdim=True) if pooled and product.shape[0] != 1 else product


def _over_batch(per_sample: Moments) -> Moments:
    """The batch's moments from those of its samples."""
    mean, cov = _joined(per_sample.mean, per_sample.cov.mean(0, keepdim=True))
    return Moments(mean, cov, per_sample.num_values * per_sample.mean.shape[0])


def _joined(means: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of equally large parts together: within the parts, and between their means."""
    mean = means.mean(0, keepdim=True)
    between = (means - mean).permute(1, 2, 0)  # G, K, B
    return mean, within + between @ between.mT / means.shape[0]


def _parts(x: Tensor) -> Tensor:
    """One long run of rows ``(1, G, K, M)`` cut into equal parts of about a block's size, if its length allows."""
    if x.shape[0] > 1:
        return x
    parts = next(parts for parts in range(len(blocks(x)), 0, -1) if x.shape[3] % parts == 0)
    return x.squeeze(0).unflatten(-1, (parts, -1)).movedim(-2, 0) if parts > 1 else x
