"""Evidence for a claim: values over seeds, counts, or several such parts. A rule decides whether the claim held."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from whitenorm_lab.claims.rules import combine_p_values, compute_paired_p_value


class PValues(NamedTuple):
    """p-values for and against a claim, with the words that explain each; 1 decides nothing."""

    held: float = 1.0
    against: float = 1.0
    words: str = "p = {p:.2g}"
    """Explains a verdict that rests on ``held``, formatted with it as ``p``."""
    otherwise: str = "the other way, p = {p:.2g}"
    """Explains a verdict that rests on ``against``."""


@dataclass(frozen=True)
class Evidence(ABC):
    """Measured values for a claim."""

    prefix: str = field(default="", kw_only=True)
    """Text before the values, such as what was run."""

    @abstractmethod
    def compute_p_values(self, min_seeds: int) -> PValues:
        """Return the p-values for and against the claim; comparisons of fewer seeds decide nothing."""

    def describe(self) -> str:
        """Format the values."""
        return self.prefix + self._describe()

    @abstractmethod
    def _describe(self) -> str: ...

    @property
    def leaves(self) -> tuple[Evidence, ...]:
        """Parts that have no parts themselves; a claim without parts is its own leaf."""
        return (self,)


@dataclass(frozen=True)
class Comparison(Evidence):
    """Values of two methods, one per seed."""

    one: Sequence[float]
    other: Sequence[float]
    names: tuple[str, str]
    margin: float = 0.0

    def _describe(self) -> str:
        words = f"{self.names[0]} {format_spread(self.one)}, {self.names[1]} {format_spread(self.other)}"
        if not self._is_finite():
            return words
        differences = [first - second for first, second in zip(self.one, self.other, strict=True)]
        return f"{words}, difference {format_spread(differences)}"

    def compute_p_values(self, min_seeds: int) -> PValues:
        if len(self.one) != len(self.other):
            raise ValueError(f"expected values of the same seeds (got {len(self.one)} and {len(self.other)})")
        if len(self.one) < min_seeds:
            return PValues(words=f"fewer than {min_seeds} seeds")
        return self._test() if self._is_finite() else self._compare_diverged()

    @abstractmethod
    def _test(self) -> PValues: ...

    @abstractmethod
    def _compare_diverged(self) -> PValues:
        """Return the p-values where at least one value is not finite."""

    def _is_finite(self) -> bool:
        return all(map(math.isfinite, (*self.one, *self.other)))


class Lower(Comparison):
    """The first method's values are lower than the second's by more than the margin."""

    def _test(self) -> PValues:
        return PValues(
            compute_paired_p_value(self.one, self.other, -self.margin),
            compute_paired_p_value(self.other, self.one, self.margin),
        )

    def _compare_diverged(self) -> PValues:
        finite_shares = [sum(map(math.isfinite, values)) / len(values) for values in (self.one, self.other)]
        small, large = self.names
        if finite_shares == [1.0, 0.0]:
            return PValues(held=0.0, words=f"every run of {large} diverged, none of {small}")
        if finite_shares == [0.0, 1.0]:
            return PValues(against=0.0, otherwise=f"every run of {small} diverged, none of {large}")
        return PValues(words="some runs diverged")


class AtMost(Lower):
    """A method's values are below a printed number, which has no spread here."""

    def _describe(self) -> str:
        return f"{self.names[0]} {format_spread(self.one)}, {self.names[1]} {self.other[0]:.4g}"


class Alike(Comparison):
    """The values of two methods differ by less than the margin."""

    def _test(self) -> PValues:
        orders = (self.one, self.other), (self.other, self.one)
        within = [compute_paired_p_value(*order, self.margin) for order in orders]
        apart = [compute_paired_p_value(*order, -self.margin) for order in orders]
        return PValues(
            max(within),
            combine_p_values(apart),
            f"margin {self.margin:g}, p = {{p:.2g}}",
            f"more than {self.margin:g} apart, p = {{p:.2g}}",
        )

    def _compare_diverged(self) -> PValues:
        return PValues(against=0.0, otherwise="a run diverged")


@dataclass(frozen=True)
class Count(Evidence):
    """Counts, which are compared without a test."""

    holds: bool
    text: str

    def compute_p_values(self, min_seeds: int) -> PValues:
        if self.holds:
            return PValues(held=0.0, words="counted")
        return PValues(against=0.0, otherwise="counted")

    def _describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class NotRun(Evidence):
    """Placeholder for runs that a scale leaves out."""

    def compute_p_values(self, min_seeds: int) -> PValues:
        return PValues(words="not part of this scale")

    def _describe(self) -> str:
        return "–"


@dataclass(frozen=True)
class AllOf(Evidence):
    """Several parts: the claim holds if all of them hold, and does not if one of them does not."""

    parts: tuple[Evidence, ...]

    def compute_p_values(self, min_seeds: int) -> PValues:
        p_values = [leaf.compute_p_values(min_seeds) for leaf in self.leaves]
        return PValues(max(p.held for p in p_values), combine_p_values([p.against for p in p_values]))

    def _describe(self) -> str:
        return "; ".join(part.describe() for part in self.parts)

    @property
    def leaves(self) -> tuple[Evidence, ...]:
        return tuple(replace(leaf, prefix=self.prefix + leaf.prefix) for part in self.parts for leaf in part.leaves)


def lower(small: Sequence[float], large: Sequence[float], names: tuple[str, str], margin: float = 0.0) -> Evidence:
    """Compare two methods of which the first should be lower by more than a margin.

    Args:
        small: values of the method that should be lower, one per seed.
        large: values of the other method, of the same seeds in the same order.
        names: names of both methods.
        margin: the smallest difference.
    """
    return Lower(small, large, names, margin)


def alike(one: Sequence[float], other: Sequence[float], names: tuple[str, str], margin: float) -> Evidence:
    """Compare two methods that should differ by less than a margin."""
    return Alike(one, other, names, margin)


def at_most(values: Sequence[float], limit: float, names: tuple[str, str]) -> Evidence:
    """Compare a method's values with a printed number, which they should be below."""
    return AtMost(values, [limit] * len(values), names)


def exactly(holds: bool, ours: str) -> Evidence:
    """State whether counts are as claimed."""
    return Count(holds, ours)


def not_run() -> Evidence:
    """State that a scale leaves out the runs of a claim."""
    return NotRun()


def every(*parts: Evidence) -> Evidence:
    """Combine parts that must all hold; a single part is returned unchanged."""
    return parts[0] if len(parts) == 1 else AllOf(parts)


def rising(names: Sequence[str], values: Sequence[Sequence[float]]) -> Evidence:
    """Compare methods of which each should be lower than the next."""
    points: Iterator[tuple[tuple[str, Sequence[float]], tuple[str, Sequence[float]]]]
    points = pairwise(zip(names, values, strict=True))
    return every(*(lower(low, high, (name, other)) for (name, low), (other, high) in points))


def format_spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation over the seeds.

    Example::

        >>> format_spread([1.0, 2.0, 3.0])
        '2 ± 1'
    """
    if not all(map(math.isfinite, values)):
        return f"{sum(map(math.isfinite, values))} of {len(values)} runs finite"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4g} ± {deviation:.2g}"
