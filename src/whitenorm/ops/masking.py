"""Positions that do not count, such as padding: they enter no statistic, give 0 and get no gradient.

Such positions are filled with the mean of the others. They then add nothing to the mean and the covariance but to the
number of values, which is corrected. No shape depends on the mask, which would need a host sync.
"""

from __future__ import annotations

from torch import Tensor

from whitenorm.ops.types import Moments, Statistics


def fill_masked_with_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Replace the positions of ``(N, C, ...)`` where the mask ``(N, ...)`` is False with each channel's mean.

    Example::

        >>> x = torch.tensor([[[1.0, 3.0, 9.0]]])
        >>> fill_masked_with_mean(x, torch.tensor([[True, True, False]]))
        tensor([[[1., 3., 2.]]])
    """
    dims = [0, *range(2, x.ndim)]
    mean = zero_masked(x, mask).sum(dims, keepdim=True) / mask.sum().clamp_min(1)
    return x.where(mask.unsqueeze(1), mean)


def zero_masked(x: Tensor, mask: Tensor) -> Tensor:
    """Replace the positions of ``(N, C, ...)`` where the mask is False with 0."""
    return x.where(mask.unsqueeze(1), 0)


def rescale_to_valid_count(statistics: Statistics, mask: Tensor) -> Statistics:
    """Return the batch's moments over the positions that count, from those of a filled input."""
    assert statistics.batch is not None
    mean, cov, filled_count = statistics.batch
    if filled_count == 0:
        # The mean of an empty batch is NaN, which not even a weight of 0 keeps out of a sum over ranks.
        return statistics
    count = mask.sum().to(mean.dtype)
    return Statistics(None, Moments(mean, cov * (mask.numel() / count.clamp_min(1)), count))
