"""Statistical rules that decide claims. The rule's name is stored with every result that was judged by it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special, stats

LEVEL = 0.05


@dataclass(frozen=True)
class Rule:
    """A statistical test, with its smallest number of seeds and its correction for multiple tests."""

    name: str
    words: str
    """Description shown beside verdicts."""
    min_seeds: int
    """A comparison of fewer seeds is not decided."""
    paired: bool
    """Whether to compare runs of the same seed, by the paired t-test; otherwise the means, by Welch's t-test."""
    corrected: bool
    """Whether to apply Holm's correction to the claims of an experiment, and Bonferroni's to the p-values against the
    parts of one claim."""

    def test(self, small: Sequence[float], large: Sequence[float], shift: float) -> float:
        """Return the one-sided p-value for mean(small) < mean(large) + shift."""
        return (_test_paired if self.paired else _test_welch)(small, large, shift)

    def combine(self, p_values: Sequence[float]) -> float:
        """Return the p-value of a statement that is true if one of several is."""
        return min(1.0, min(p_values) * (len(p_values) if self.corrected else 1))

    def adjust(self, p_values: Sequence[float]) -> list[float]:
        """Return the p-values of the claims of one experiment, adjusted by Holm's method, in the same order.

        Example::

            >>> PAIRED_HOLM.adjust([0.04, 0.01, 0.9])
            [0.08, 0.03, 0.9]
            >>> WELCH.adjust([0.04, 0.01, 0.9])
            [0.04, 0.01, 0.9]
        """
        if not self.corrected:
            return list(p_values)
        adjusted, largest = [0.0] * len(p_values), 0.0
        for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            largest = adjusted[i] = min(1.0, max(largest, (len(p_values) - rank) * p_values[i]))
        return adjusted


# Judges only results that were made before PAIRED_HOLM was introduced.
WELCH = Rule("Welch", "Welch's t-test, one-sided, at 5 %, at least three seeds", 3, paired=False, corrected=False)
PAIRED_HOLM = Rule(
    "paired, Holm",
    "the paired t-test, one-sided, at 5 %, at least five seeds (three for detection, segmentation, translation and "
    "style), corrected by Holm's method over the claims of an experiment",
    5,
    paired=True,
    corrected=True,
)
RULES = {rule.name: rule for rule in (WELCH, PAIRED_HOLM)}


def _test_welch(small: Sequence[float], large: Sequence[float], shift: float) -> float:
    shifted = [value + shift for value in large]
    if len({*small}) == 1 and len({*shifted}) == 1:
        # No spread at all: the values do not depend on the seed.
        return 0.0 if small[0] < shifted[0] else 1.0
    # From means and deviations, because scipy warns about samples without spread, such as a printed number.
    samples = [(statistics.fmean(values), statistics.stdev(values), len(values)) for values in (small, shifted)]
    return float(stats.ttest_ind_from_stats(*samples[0], *samples[1], equal_var=False, alternative="less").pvalue)


def _test_paired(small: Sequence[float], large: Sequence[float], shift: float) -> float:
    differences = [low - high - shift for low, high in zip(small, large, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    deviation = math.sqrt(math.fsum((difference - mean) ** 2 for difference in differences) / (count - 1))
    if deviation == 0:
        return 0.0 if mean < 0 else 1.0
    # Not scipy's own test, which warns if the spread is as small as rounding errors.
    return float(special.stdtr(count - 1, mean / deviation * math.sqrt(count)))
