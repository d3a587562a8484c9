"""The statistical rule that decides claims: the paired t-test, corrected by Holm's method."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

NAME = "paired, Holm"
"""Stored with every result that was judged by this rule."""
DESCRIPTION = (
    "the paired t-test, one-sided, at 5 %, at least five seeds (three for detection, segmentation, translation and "
    "style), corrected by Holm's method over the claims of an experiment"
)
LEVEL = 0.05
MIN_SEEDS = 5
"""A comparison of fewer seeds is not decided, unless its experiment has a smaller minimum."""


def compute_paired_p_value(small: Sequence[float], large: Sequence[float], shift: float) -> float:
    """Return the one-sided p-value for mean(small) < mean(large) + shift, of values of the same seeds in order."""
    differences = [low - high - shift for low, high in zip(small, large, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    deviation = math.sqrt(math.fsum((difference - mean) ** 2 for difference in differences) / (count - 1))
    if deviation == 0:
        return 0.0 if mean < 0 else 1.0
    # Not scipy's own test, which warns if the spread is as small as rounding errors.
    return float(special.stdtr(count - 1, mean / deviation * math.sqrt(count)))


def combine_p_values(p_values: Sequence[float]) -> float:
    """Return the p-value of a statement that is true if one of several is, by Bonferroni's correction."""
    return min(1.0, min(p_values) * len(p_values))


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of the claims of one experiment, adjusted by Holm's method, in the same order.

    Example::

        >>> adjust_by_holm([0.04, 0.01, 0.9])
        [0.08, 0.03, 0.9]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = adjusted[i] = min(1.0, max(largest, (len(p_values) - rank) * p_values[i]))
    return adjusted
