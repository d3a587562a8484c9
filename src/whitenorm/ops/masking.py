"""Masked positions, such as padding: they are excluded from all statistics, give 0 and get no gradient.

Masked positions are filled with the mean of the valid ones, which changes neither the mean nor the sums of squares; the
number of values is corrected afterwards. No shape depends on the mask, because that would need a host sync.
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
    """Return the batch's moments over the valid positions, from those of a filled input."""
    assert statistics.batch is not None
    mean, cov, filled_count = statistics.batch
    if filled_count == 0:
        # The mean of an empty batch is NaN, which not even a weight of 0 keeps out of a sum over ranks.
        return statistics
    count = mask.sum().to(mean.dtype)
    return Statistics(None, Moments(mean, cov * (mask.numel() / count.clamp_min(1)), count))
