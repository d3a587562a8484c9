"""Checks of users' arguments, whose errors say what was expected, what was given and what to do."""

from __future__ import annotations

import math
import sys
import warnings

import torch
from torch import Tensor

from whitenorm._runtime import may_read_values
from whitenorm.ops.types import STATISTICS


def divisors(n: int) -> list[int]:
    """Return all divisors of n in ascending order.

    Example::

        >>> divisors(12)
        [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def largest_divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most ``most``.

    Example::

        >>> largest_divisor(96, 64), largest_divisor(24, 64), largest_divisor(67, 64)
        (48, 24, 1)
    """
    return next(divisor for divisor in range(min(most, n), 0, -1) if n % divisor == 0)


def root_divisor(n: int) -> int:
    """Return the largest divisor of n that is at most its square root.

    Example::

        >>> root_divisor(64), root_divisor(768)
        (8, 24)
    """
    return largest_divisor(n, math.isqrt(n))


class Wish(int):
    """A default group size, which adapts to the number of channels; one that a caller passes must divide it.

    Example::

        >>> Wish(64)
        64
    """

    # A plain int, because the compiler cannot compute with a subclass.
    size: int

    def __new__(cls, size: int) -> Wish:
        wish = super().__new__(cls, size)
        wish.size = size
        return wish


def fit_group_size(num_features: int, group_size: int | None) -> int:
    """Return the group size to use: all channels for None or a larger number, otherwise a divisor of them.

    A :class:`Wish` becomes the largest divisor up to it, with a warning if that is below a quarter of it, or 1.

    Example::

        >>> fit_group_size(64, None), fit_group_size(64, 16), fit_group_size(32, 64), fit_group_size(96, Wish(64))
        (64, 16, 32, 48)
    """
    if group_size is None:
        return num_features
    if isinstance(group_size, Wish):
        return _adapt_group_size(num_features, group_size.size)
    check_positive("group_size", group_size)
    if group_size > num_features:
        return num_features
    check_divides("group_size", group_size, "channels", num_features)
    return group_size


def _adapt_group_size(num_features: int, wish: int) -> int:
    """Return the largest divisor of the channels up to the wish, and warn if it is below a quarter of it, or 1."""
    if wish >= num_features:
        return num_features
    size = largest_divisor(num_features, wish)
    # A compiler cannot trace a warning.
    if (4 * size < wish or size == 1) and not torch.compiler.is_compiling():
        means = ", which is BatchNorm's scaling without whitening" if size == 1 else ""
        warnings.warn(
            f"the default group_size={wish} does not divide the {num_features} channels, so group_size={size} is used"
            f"{means}; pass group_size, one of {divisors(num_features)}, or choose a width with more divisors",
            stacklevel=_caller_level(),
        )
    return size


def _caller_level() -> int:
    """Return the ``stacklevel`` with which a warning of the calling function points to code outside whitenorm."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("whitenorm."):
        level, frame = level + 1, frame.f_back
    return level


def check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"expected {name} to be a whole number of at least 1 (got {value!r})")


def check_divides(name: str, value: int, what: str, total: int) -> None:
    check_positive(name, value)
    if total % value:
        raise ValueError(f"expected {name} to divide the {total} {what} (got {value}); choose one of {divisors(total)}")


def check_number(name: str, value: float, low: float, high: float, advice: str) -> None:
    """Raise unless the value is a real number from low to high."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"expected {name} from {low} to {high} (got {value!r}); {advice}")


def check_eps(eps: float, high: float = 1e30) -> None:
    check_number("eps", eps, 0, high, "leave it out for the papers' 1e-5, or 1e-3 of DBN")


def check_momentum(momentum: float | None) -> None:
    if momentum is not None:
        check_number("momentum", momentum, 0, 1, "it is the weight of the new batch; None for a cumulative average")


def check_statistics(statistics: tuple[str, ...]) -> None:
    known = ", ".join(f'"{name}"' for name in STATISTICS)
    if not isinstance(statistics, (tuple, list)) or not statistics:
        raise ValueError(f"expected statistics to be a tuple of {known} (got {statistics!r})")
    for name in statistics:
        if name not in STATISTICS:
            raise ValueError(f"expected each statistic to be one of {known} (got {name!r})")
    if len(set(statistics)) < len(statistics):
        raise ValueError(f"expected each statistic once (got {statistics!r}); leave the repeated one out")


def check_rank(x: Tensor) -> None:
    if x.is_nested:
        raise ValueError(
            "expected a dense tensor (got a nested one); pad it, x.to_padded_tensor(0), and pass the mask of its "
            "positions to a batch whitening; LayerWhitening takes jagged tensors (N, *, C) as they are"
        )
    if x.ndim not in (2, 3, 4, 5):
        raise ValueError(
            f"expected 2D to 5D input (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W) (got {x.ndim}D input of "
            f"shape {tuple(x.shape)})"
        )


def check_channels(x: Tensor, num_features: int) -> None:
    check_rank(x)
    if x.shape[1] != num_features:
        raise ValueError(
            f"expected {num_features} channels in dimension 1 (got {x.shape[1]} in input of shape {tuple(x.shape)}); "
            "the channels come second, as in BatchNorm; for tokens (..., C) use LayerWhitening"
        )


def check_mask(x: Tensor, mask: Tensor) -> None:
    """Raise unless a mask is boolean with one entry per position of ``(N, C, ...)``."""
    shape = (x.shape[0], *x.shape[2:])
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ValueError(
            f"expected a boolean mask of shape {shape}, True where a position counts, for input of shape "
            f"{tuple(x.shape)} (got {mask.dtype} of shape {tuple(mask.shape)}); for lengths it is "
            "torch.arange(L) < lengths.unsqueeze(1)"
        )


def check_parameter(name: str, parameter: Tensor | None, num_features: int) -> None:
    if parameter is not None and parameter.shape != (num_features,):
        raise ValueError(f"expected {name} of shape ({num_features},), one per channel (got {tuple(parameter.shape)})")


def check_running(name: str, mean: Tensor | None, matrix: Tensor | None, num_features: int, group_size: int) -> None:
    """Raise unless a running mean and a running matrix, if given, fit the channels and groups."""
    check_parameter("running_mean", mean, num_features)
    shape = (num_features // group_size, group_size, group_size)
    if matrix is not None and matrix.shape != shape:
        raise ValueError(
            f"expected {name} of shape {shape}, a matrix for each group of {group_size} channels "
            f"(got {tuple(matrix.shape)})"
        )


def check_batch(x: Tensor, group: object = None) -> None:
    """Raise BatchNorm's error for a batch of at most one value per channel, unless other ranks may add values."""
    if group is not None:
        return
    if x.shape[0] * math.prod(x.shape[2:]) <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.shape}; "
            "use a larger batch, or population statistics"
        )


def check_valid_count(x: Tensor, mask: Tensor | None, num_values: Tensor) -> None:
    """Raise BatchNorm's error where a mask, or the batches of all ranks, leave one value per channel.

    The number of values is the same on all ranks, so that all of them raise. It is read only where it may be 1 and
    reading it does not stall a device; elsewhere such a batch leaves the running statistics unchanged.
    """
    if not may_read_values(num_values):
        return
    if mask is None and x.shape[0] * math.prod(x.shape[2:]) > 1:
        return
    if num_values == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.shape} and 1 value that counts, "
            "by the mask and over all ranks; use a larger batch, or population statistics"
        )


def check_positions(x: Tensor, per: str, count: int, layer: str = "") -> None:
    """Raise BatchNorm's error where the statistics of one sample have at most one value; ``layer`` names the layer."""
    if count <= 1:
        raise ValueError(
            f"Expected more than 1 value per {per} and sample to whiten{layer}, got input size {x.shape}: a single "
            "value has no covariance; use larger images or fewer groups, leave such layers out of a conversion "
            "(where=...), or take SwitchableWhitening or a batch method, which have statistics of the batch"
        )
