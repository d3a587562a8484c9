"""Positions that do not count, such as padding: they enter no statistic, give 0 and get no gradient.

Such positions are filled with the mean of those that count. The mean of all is then the mean of these, and the filled
ones add nothing to the covariance but to the number of values that it is divided by. So all steps stay as they are, and
no shape depends on the mask, which would wait for a GPU.
"""

from __future__ import annotations

from torch import Tensor

from whitenorm.ops.types import Moments, Statistics


def filled(x: Tensor, mask: Tensor) -> Tensor:
    """``(N, C, ...)`` with each channel's mean over the positions ``(N, ...)`` that count, in place of the others.

    Example::

        >>> x = torch.tensor([[[1.0, 3.0, 9.0]]])
        >>> filled(x, torch.tensor([[True, True, False]]))
        tensor([[[1., 3., 2.]]])
    """
    dims = [0, *range(2, x.ndim)]
    mean = cleared(x, mask).sum(dims, keepdim=True) / mask.sum().clamp_min(1)
    return x.where(mask.unsqueeze(1), mean)


def cleared(x: Tensor, mask: Tensor) -> Tensor:
    """``(N, C, ...)`` with 0 at the positions that do not count."""
    return x.where(mask.unsqueeze(1), 0)


def counted(measured: Statistics, mask: Tensor) -> Statistics:
    """The batch's moments of the values that count, from those of a filled input."""
    assert measured.batch is not None
    mean, cov, values = measured.batch
    if values == 0:
        # The mean of an empty batch is NaN, which not even a weight of 0 keeps out of a sum over ranks.
        return measured
    number = mask.sum().to(mean.dtype)
    return Statistics(None, Moments(mean, cov * (mask.numel() / number.clamp_min(1)), number))
