"""Mean and covariance by themselves, for those who look at data and do not whiten it."""

from __future__ import annotations

from torch import Tensor

from whitenorm.ops.layout import channel_groups
from whitenorm.ops.torch.moments import moments
from whitenorm.ops.types import Moments


def channel_moments(x: Tensor, group_size: int, pooled: bool = True) -> Moments:
    """Of groups of neighbouring channels of ``(N, C, ...)``, over the batch or, not ``pooled``, of each sample.

    Example::

        >>> mean, cov, number = channel_moments(torch.randn(4, 6, 5, 5), group_size=3)
        >>> mean.shape, cov.shape, number
        (torch.Size([1, 2, 3]), torch.Size([1, 2, 3, 3]), 100)
    """
    measured = moments(channel_groups(x, group_size, pooled).split(x), sample=not pooled, batch=pooled)
    found = measured.batch if pooled else measured.sample
    assert found is not None
    return found
