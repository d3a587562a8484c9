"""Mean and covariance of channels, for code that measures data and does not whiten it."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.layout import channel_groups
from whitenorm.ops.torch.passes import moments
from whitenorm.ops.types import Moments


def channel_moments(x: Tensor, group_size: int, pooled: bool = True) -> Moments:
    """Return the moments of groups of neighbouring channels of ``(N, C, ...)``, over the batch or of each sample.

    Example::

        >>> mean, cov, num_values = channel_moments(torch.randn(4, 6, 5, 5), group_size=3)
        >>> mean.shape, cov.shape, num_values
        (torch.Size([1, 2, 3]), torch.Size([1, 2, 3, 3]), 100)
    """
    statistics = moments(channel_groups(x, group_size, pooled).split(x), sample=not pooled, batch=pooled)
    result = statistics.batch if pooled else statistics.sample
    assert result is not None
    return result


def combine_moments(a: Moments, b: Moments) -> Moments:
    """Return the moments of two sets of values together; one of them may be empty, with zero moments.

    Example::

        >>> x = torch.randn(10, 4, dtype=torch.float64)
        >>> parts = [channel_moments(part, group_size=2) for part in (x[:3], x[3:])]
        >>> torch.allclose(combine_moments(*parts).cov, channel_moments(x, group_size=2).cov)
        True
    """
    num_values = a.num_values + b.num_values
    share = b.num_values / (num_values.clamp(min=1) if isinstance(num_values, Tensor) else max(num_values, 1))
    step = b.mean - a.mean
    between = share * (1 - share) * step.unsqueeze(-1) * step.unsqueeze(-2)
    return Moments(a.mean + share * step, torch.lerp(a.cov, b.cov, share) + between, num_values)
