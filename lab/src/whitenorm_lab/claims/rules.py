"""By which test numbers are compared. What a rule is called stands with every result that was judged by it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special, stats

LEVEL = 0.05


@dataclass(frozen=True)
class Rule:
    """How claims are judged."""

    name: str
    words: str
    """In one sentence, for who reads a verdict."""
    fewest: int
    """Seeds, below which nothing is decided."""
    paired: bool
    """Whether runs that share a seed are compared with each other, by Student's t-test of their differences; otherwise
    all with all, by Welch's."""
    corrected: bool
    """Whether the level is Holm's over the claims of an entry, and what one part of several says against a claim
    counts as one of so many."""

    def test(self, small: Sequence[float], large: Sequence[float], shift: float) -> float:
        """How likely numbers this far apart are if the first were not below the second plus a shift."""
        return (_paired if self.paired else _welch)(small, large, shift)

    def any_of(self, found: Sequence[float]) -> float:
        """Of several tests, one of which is enough: the least, and where it is corrected as many times as there are."""
        return min(1.0, min(found) * (len(found) if self.corrected else 1))

    def adjusted(self, found: Sequence[float]) -> list[float]:
        """What of each p of an entry is held against the level, in the order given.

        Holm's: the smallest times their number, the next times one less, and so on, none below the one before.

        Example::

            >>> SECOND.adjusted([0.04, 0.01, 0.9])
            [0.08, 0.03, 0.9]
            >>> FIRST.adjusted([0.04, 0.01, 0.9])
            [0.04, 0.01, 0.9]
        """
        if not self.corrected:
            return list(found)
        adjusted, least = [0.0] * len(found), 0.0
        for left, place in zip(
            range(len(found), 0, -1), sorted(range(len(found)), key=lambda place: found[place]), strict=True
        ):
            least = adjusted[place] = min(1.0, max(least, left * found[place]))
        return adjusted


FIRST = Rule("Welch", "Welch's t-test, one-sided, at 5 %, at least three seeds", 3, paired=False, corrected=False)
SECOND = Rule(
    "paired, Holm",
    "the paired t-test, one-sided, at 5 %, at least five seeds (three of detection, segmentation, translation and "
    "style), corrected by Holm's method over the claims of an entry",
    5,
    paired=True,
    corrected=True,
)
RULES = {rule.name: rule for rule in (FIRST, SECOND)}


def _welch(small: Sequence[float], large: Sequence[float], shift: float) -> float:
    """Welch's t-test of two means, those of independent numbers."""
    moved = [value + shift for value in large]
    if len({*small}) == 1 and len({*moved}) == 1:
        # No spread at all, as in what does not depend on the seed.
        return 0.0 if small[0] < moved[0] else 1.0
    # From means and deviations, as scipy warns of samples without spread, such as a printed number.
    sides = [(statistics.fmean(values), statistics.stdev(values), len(values)) for values in (small, moved)]
    return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False, alternative="less").pvalue)


def _paired(small: Sequence[float], large: Sequence[float], shift: float) -> float:
    """The paired t-test: Student's, of the mean difference of a pair."""
    differences = [low - high - shift for low, high in zip(small, large, strict=True)]
    number = len(differences)
    mean = math.fsum(differences) / number
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (number - 1))
    if deviation == 0:
        return 0.0 if mean < 0 else 1.0
    # Not scipy's own test, which warns where the spread is as small as rounding.
    return float(special.stdtr(number - 1, mean / deviation * math.sqrt(number)))
