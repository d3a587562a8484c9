"""Mean and covariance of channels, for code that measures data and does not whiten it."""

from __future__ import annotations

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
