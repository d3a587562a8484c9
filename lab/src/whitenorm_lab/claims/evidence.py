"""What a claim compares: numbers of several seeds, counts, or several such parts. Whether it held, a rule decides."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from whitenorm_lab.claims.rules import Rule


class P(NamedTuple):
    """How likely such numbers are if the claim did not hold, and if it did; with what it rests on in words."""

    held: float
    against: float
    words: str = "p = {p:.2g}"
    """For the claim, with the ``p`` that decides."""
    otherwise: str = "the other way, p = {p:.2g}"
    """Against it."""


OPEN = 1.0


@dataclass(frozen=True)
class Evidence(ABC):
    """Our numbers for a claim."""

    prefix: str = field(default="", kw_only=True)
    """Said before the numbers, such as what was run."""

    @abstractmethod
    def p(self, rule: Rule) -> P:
        """For and against the claim."""

    def ours(self, rule: Rule) -> str:
        """Our numbers in words."""
        return self.prefix + self._numbers(rule)

    @abstractmethod
    def _numbers(self, rule: Rule) -> str: ...

    @property
    def leaves(self) -> tuple[Evidence, ...]:
        """What a claim of several parts is made of; itself otherwise."""
        return (self,)


@dataclass(frozen=True)
class Compared(Evidence):
    """Two methods' numbers, one a seed."""

    one: Sequence[float]
    other: Sequence[float]
    names: tuple[str, str]
    margin: float = 0.0

    def _numbers(self, rule: Rule) -> str:
        words = f"{self.names[0]} {spread(self.one)}, {self.names[1]} {spread(self.other)}"
        if not rule.paired or not self._finite():
            return words
        differences = [first - second for first, second in zip(self.one, self.other, strict=True)]
        return f"{words}, difference {spread(differences)}"

    def p(self, rule: Rule) -> P:
        if rule.paired and len(self.one) != len(self.other):
            raise ValueError(f"expected numbers of the same seeds (got {len(self.one)} and {len(self.other)})")
        if min(len(self.one), len(self.other)) < rule.fewest:
            return P(OPEN, OPEN, f"fewer than {rule.fewest} seeds")
        if not self._finite():
            return self._diverged()
        return self._tested(rule)

    @abstractmethod
    def _tested(self, rule: Rule) -> P: ...

    @abstractmethod
    def _diverged(self) -> P: ...

    def _finite(self) -> bool:
        return all(map(math.isfinite, (*self.one, *self.other)))


class Lower(Compared):
    """That one method's numbers are lower than another's, by more than a margin."""

    def _tested(self, rule: Rule) -> P:
        return P(
            rule.test(self.one, self.other, -self.margin),
            rule.test(self.other, self.one, self.margin),
        )

    def _diverged(self) -> P:
        finite = [sum(map(math.isfinite, values)) / len(values) for values in (self.one, self.other)]
        small, large = self.names
        if finite == [1.0, 0.0]:
            return P(0.0, OPEN, f"every run of {large} diverged, none of {small}")
        if finite == [0.0, 1.0]:
            return P(OPEN, 0.0, otherwise=f"every run of {small} diverged, none of {large}")
        return P(OPEN, OPEN, "some runs diverged")


class AtMost(Lower):
    """That a method's numbers are below one that was printed, which has no spread here."""

    def _numbers(self, rule: Rule) -> str:
        return f"{self.names[0]} {spread(self.one)}, {self.names[1]} {self.other[0]:.4g}"


class Alike(Compared):
    """That two methods' numbers differ by less than a margin."""

    def _tested(self, rule: Rule) -> P:
        within = [rule.test(self.one, self.other, self.margin), rule.test(self.other, self.one, self.margin)]
        apart = [rule.test(self.one, self.other, -self.margin), rule.test(self.other, self.one, -self.margin)]
        return P(
            max(within),
            rule.any_of(apart),
            f"margin {self.margin:g}, p = {{p:.2g}}",
            f"more than {self.margin:g} apart, p = {{p:.2g}}",
        )

    def _diverged(self) -> P:
        return P(OPEN, 0.0, otherwise="a run diverged")


@dataclass(frozen=True)
class Counted(Evidence):
    """A claim about counts, which hold or do not."""

    holds: bool
    numbers: str

    def p(self, rule: Rule) -> P:
        return P(0.0, OPEN, "counted") if self.holds else P(OPEN, 0.0, otherwise="counted")

    def _numbers(self, rule: Rule) -> str:
        return self.numbers


@dataclass(frozen=True)
class Missing(Evidence):
    """Of a claim about runs that this scale does not have."""

    def p(self, rule: Rule) -> P:
        return P(OPEN, OPEN, "not part of this scale")

    def _numbers(self, rule: Rule) -> str:
        return "–"


@dataclass(frozen=True)
class Every(Evidence):
    """A claim of several parts: it holds when all hold, and does not when one does not."""

    parts: tuple[Evidence, ...]

    def p(self, rule: Rule) -> P:
        found = [part.p(rule) for part in self.leaves]
        return P(max(p.held for p in found), rule.any_of([p.against for p in found]))

    def _numbers(self, rule: Rule) -> str:
        return "; ".join(part.ours(rule) for part in self.parts)

    @property
    def leaves(self) -> tuple[Evidence, ...]:
        # What is said before all of them is said before each.
        return tuple(replace(leaf, prefix=self.prefix + leaf.prefix) for part in self.parts for leaf in part.leaves)


def lower(small: Sequence[float], large: Sequence[float], names: tuple[str, str], margin: float = 0.0) -> Evidence:
    """That one method's numbers are lower than another's, by more than a margin.

    Args:
        small: a number a seed.
        large: of the same seeds, in the same order.
        names: of both methods.
        margin: by how much more.
    """
    return Lower(small, large, names, margin)


def alike(one: Sequence[float], other: Sequence[float], names: tuple[str, str], margin: float) -> Evidence:
    """That two methods' numbers differ by less than a margin."""
    return Alike(one, other, names, margin)


def at_most(values: Sequence[float], limit: float, names: tuple[str, str]) -> Evidence:
    """That a method's numbers are below one that was printed, which has no spread here."""
    return AtMost(values, [limit] * len(values), names)


def exactly(holds: bool, ours: str) -> Evidence:
    """A claim about counts, which hold or do not."""
    return Counted(holds, ours)


def not_run() -> Evidence:
    """Of a claim about runs that this scale does not have."""
    return Missing()


def every(*parts: Evidence) -> Evidence:
    """A claim of several parts; of one it is that one."""
    return parts[0] if len(parts) == 1 else Every(parts)


def rising(names: Sequence[str], values: Sequence[Sequence[float]]) -> Evidence:
    """That each method's numbers are lower than the next one's."""
    points: Iterator[tuple[tuple[str, Sequence[float]], tuple[str, Sequence[float]]]]
    points = pairwise(zip(names, values, strict=True))
    return every(*(lower(low, high, (name, other)) for (name, low), (other, high) in points))


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over the seeds.

    Example::

        >>> spread([1.0, 2.0, 3.0])
        '2 ± 1'
    """
    if not all(map(math.isfinite, values)):
        return f"{sum(map(math.isfinite, values))} of {len(values)} runs finite"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4g} ± {deviation:.2g}"
