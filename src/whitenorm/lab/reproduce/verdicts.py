"""Whether a claim held, by one stated rule.

Numbers of several seeds are compared by Welch's t-test, one-sided, at 5 %, with at least three seeds on each side:
held when the difference is in the claim's direction and significant, not held when it is in the other direction and
significant, and not decided otherwise. A claim that two things are alike is held when they differ by less than a
stated margin, both ways significant (two one-sided tests), and not held when they differ by more. A claim of several
parts holds when all hold, and does not when one does not. Counts are compared as they are. A claim about runs that a
smaller scale leaves out is not run there.

Runs that share a seed share weights and data, so what they differ by varies less than they do. The entries that came
with table A1 and the papers' other tasks (gw-df, gw-coco, gw-nmt, sw-segmentation, sw-style) therefore judge the pairs'
differences, by the paired t-test, one-sided, at 5 %, with at least three seeds. Entries from before keep Welch's test,
by which their claims were first judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from scipy import stats

Verdict = Literal["held", "not held", "not decided", "not run"]
LEVEL = 0.05
FEWEST_SEEDS = 3
_WEAKEST_FIRST: tuple[Verdict, ...] = ("not held", "not run", "not decided", "held")
# Of the parts of a claim, how many give their reasons.
_REASONS = 3
# How likely numbers this far apart are if the first were not below the second plus a shift.
_Test = Callable[[Sequence[float], Sequence[float], float], float]


@dataclass(frozen=True)
class Judgement:
    """Our numbers for a claim, the verdict, and what it rests on."""

    verdict: Verdict
    ours: str
    why: str = ""
    parts: tuple[Judgement, ...] = ()
    """What a claim of several parts is made of."""


def lower(small: Sequence[float], large: Sequence[float], names: tuple[str, str], margin: float = 0.0) -> Judgement:
    """That one method's numbers are lower than another's, by more than a margin.

    Example::

        >>> lower([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], ("DBN", "BN")).verdict
        'held'
        >>> lower([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], ("DBN", "BN")).verdict
        'not decided'
    """
    return _lower(small, large, names, margin, _welch)


def lower_paired(
    small: Sequence[float], large: Sequence[float], names: tuple[str, str], margin: float = 0.0
) -> Judgement:
    """That one method's numbers are lower than another's of the same seed, by more than a margin.

    Args:
        small: a number a seed.
        large: of the same seeds, in the same order.
        names: of both methods.
        margin: by how much more.

    Example::

        >>> lower_paired([1.0, 2.0, 3.0], [1.1, 2.2, 3.1], ("GW", "BN")).verdict
        'held'
        >>> lower([1.0, 2.0, 3.0], [1.1, 2.2, 3.1], ("GW", "BN")).verdict
        'not decided'
    """
    return _of_pairs(_lower, small, large, names, margin)


def alike(one: Sequence[float], other: Sequence[float], names: tuple[str, str], margin: float) -> Judgement:
    """That two methods' numbers differ by less than a margin.

    Example::

        >>> alike([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], ("GW", "GN"), margin=1.0).verdict
        'held'
    """
    return _alike(one, other, names, margin, _welch)


def alike_paired(one: Sequence[float], other: Sequence[float], names: tuple[str, str], margin: float) -> Judgement:
    """That two methods' numbers of the same seed differ by less than a margin.

    Example::

        >>> alike_paired([1.0, 2.0, 3.0], [1.1, 2.0, 2.9], ("GW", "GN"), margin=0.5).verdict
        'held'
    """
    return _of_pairs(_alike, one, other, names, margin)


def at_most(values: Sequence[float], limit: float, names: tuple[str, str]) -> Judgement:
    """That a method's numbers are below one that was printed, which has no spread here: the one-sample t-test.

    Example::

        >>> at_most([1.0, 1.1, 0.9], 2.0, ("GW", "paper")).ours
        'GW 1 ± 0.1, paper 2'
    """
    judged = lower(values, [limit] * max(len(values), FEWEST_SEEDS), names)
    return replace(judged, ours=f"{names[0]} {spread(values)}, {names[1]} {limit:.4g}")


def exactly(holds: bool, ours: str) -> Judgement:
    """A claim about counts, which hold or do not."""
    return Judgement("held" if holds else "not held", ours, "counted")


def not_run() -> Judgement:
    """Of a claim about runs that this scale does not have."""
    return Judgement("not run", "–", "not part of this scale")


def every(*parts: Judgement) -> Judgement:
    """A claim of several parts."""
    verdicts = {part.verdict for part in parts}
    verdict = next(one for one in _WEAKEST_FIRST if one in verdicts)
    leaves = tuple(leaf for part in parts for leaf in (part.parts or (part,)))
    deciding = [leaf.why for leaf in leaves if leaf.verdict == verdict]
    reasons = "; ".join(dict.fromkeys(deciding[:_REASONS])) + ("; …" if len(deciding) > _REASONS else "")
    why = f"{len(deciding)} of {len(leaves)} parts {verdict}: {reasons}"
    return Judgement(verdict, "; ".join(part.ours for part in parts), why, leaves)


def rising(names: Sequence[str], values: Sequence[Sequence[float]]) -> Judgement:
    """That each method's numbers are lower than the next one's.

    Example::

        >>> rising(["T=1", "T=3"], [[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]]).verdict
        'held'
    """
    points = zip(names, values, strict=True)
    return every(*(lower(low, high, (name, other)) for (name, low), (other, high) in pairwise(points)))


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over the seeds."""
    if not all(map(math.isfinite, values)):
        return f"{sum(map(math.isfinite, values))} of {len(values)} runs finite"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4g} ± {deviation:.2g}"


def _lower(
    small: Sequence[float], large: Sequence[float], names: tuple[str, str], margin: float, p: _Test
) -> Judgement:
    ours = f"{names[0]} {spread(small)}, {names[1]} {spread(large)}"
    if min(len(small), len(large)) < FEWEST_SEEDS:
        return Judgement("not decided", ours, f"fewer than {FEWEST_SEEDS} seeds")
    if not all(map(math.isfinite, (*small, *large))):
        return _diverged(small, large, names, ours)
    below, above = p(small, large, -margin), p(large, small, margin)
    if below < LEVEL:
        return Judgement("held", ours, f"p = {below:.2g}")
    if above < LEVEL:
        return Judgement("not held", ours, f"the other way, p = {above:.2g}")
    return Judgement("not decided", ours, f"p = {below:.2g}")


def _alike(one: Sequence[float], other: Sequence[float], names: tuple[str, str], margin: float, p: _Test) -> Judgement:
    ours = f"{names[0]} {spread(one)}, {names[1]} {spread(other)}"
    if min(len(one), len(other)) < FEWEST_SEEDS:
        return Judgement("not decided", ours, f"fewer than {FEWEST_SEEDS} seeds")
    if not all(map(math.isfinite, (*one, *other))):
        return Judgement("not held", ours, "a run diverged")
    within = max(p(one, other, margin), p(other, one, margin))
    apart = min(p(one, other, -margin), p(other, one, -margin))
    if within < LEVEL:
        return Judgement("held", ours, f"within {margin:g}, p = {within:.2g}")
    if apart < LEVEL:
        return Judgement("not held", ours, f"more than {margin:g} apart, p = {apart:.2g}")
    return Judgement("not decided", ours, f"margin {margin:g}, p = {within:.2g}")


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
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return 0.0 if mean < 0 else 1.0
    # Not scipy's own, which warns where the spread is as small as rounding.
    return float(stats.t.cdf(mean / deviation * math.sqrt(len(differences)), len(differences) - 1))


def _of_pairs(
    judge: Callable[..., Judgement],
    one: Sequence[float],
    other: Sequence[float],
    names: tuple[str, str],
    margin: float,
) -> Judgement:
    """A judgement by the paired test, which says so, and what the pairs differ by."""
    if len(one) != len(other):
        raise ValueError(f"expected numbers of the same seeds (got {len(one)} and {len(other)})")
    judged = judge(one, other, names, margin, _paired)
    if not all(map(math.isfinite, (*one, *other))):
        return judged
    differences = [first - second for first, second in zip(one, other, strict=True)]
    return replace(judged, ours=f"{judged.ours}, difference {spread(differences)}", why=f"paired: {judged.why}")


def _diverged(small: Sequence[float], large: Sequence[float], names: tuple[str, str], ours: str) -> Judgement:
    finite = [sum(map(math.isfinite, values)) / len(values) for values in (small, large)]
    if finite == [1.0, 0.0]:
        return Judgement("held", ours, f"every run of {names[1]} diverged, none of {names[0]}")
    if finite == [0.0, 1.0]:
        return Judgement("not held", ours, f"every run of {names[0]} diverged, none of {names[1]}")
    return Judgement("not decided", ours, "some runs diverged")
