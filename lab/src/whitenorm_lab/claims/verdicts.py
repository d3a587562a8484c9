"""Whether a claim held, by one stated rule, decided on before the runs.

Runs that share a seed share weights and data, so their differences are judged: by the paired t-test, one-sided, at 5 %,
with at least five seeds (three of detection, segmentation, translation and style, whose runs are long), the level
corrected by Holm's method over all claims of the paper in an entry that were tested, and over our own bars apart. A
claim is held when the difference is in its direction and significant, not held when it is in the other direction and
significant, and not decided otherwise. A claim that two things are alike is held when they differ by less than a stated
margin, both ways significant (two one-sided tests), and not held when they differ by more. A claim of several parts
holds when all hold, and does not when one does not, whose p counts as one of as many. Counts are compared as they are.
A claim about runs that a smaller scale leaves out is not run there. The seeds are none that a set-up was chosen by.

Results from before this rule keep the one they were judged by, and say so: Welch's t-test of all seeds, one-sided, at
5 % for each claim, with at least three seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whitenorm_lab.claims.evidence import Compared, Evidence, Missing, P
from whitenorm_lab.claims.rules import LEVEL, Rule

Verdict = Literal["held", "not held", "not decided", "not run"]
# Of the parts of a claim, how many give their reasons.
_REASONS = 3


@dataclass(frozen=True)
class Judgement:
    """Our numbers for a claim, the verdict, and what it rests on."""

    verdict: Verdict
    ours: str
    why: str = ""
    parts: tuple[Judgement, ...] = ()
    """Each of several by itself, by the level of the whole claim."""


def judge(claims: Sequence[Evidence], rule: Rule) -> list[Judgement]:
    """The claims of one entry, together.

    Example::

        >>> from whitenorm_lab.claims.evidence import lower
        >>> from whitenorm_lab.claims.rules import FIRST
        >>> judge([lower([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], ("DBN", "BN"))], FIRST)[0].verdict
        'held'
    """
    tested = [claim for claim in claims if any(isinstance(leaf, Compared) for leaf in claim.leaves)]
    found = [claim.p(rule) for claim in tested]
    held, against = rule.adjusted([p.held for p in found]), rule.adjusted([p.against for p in found])
    adjusted = {id(claim): pair for claim, *pair in zip(tested, held, against, strict=True)}
    most = len(tested) if rule.corrected else 1
    return [_judged(claim, rule, *adjusted.get(id(claim), claim.p(rule)[:2]), most=most) for claim in claims]


def _judged(claim: Evidence, rule: Rule, held: float, against: float, *, most: int) -> Judgement:
    p, missing = claim.p(rule), any(isinstance(leaf, Missing) for leaf in claim.leaves)
    verdict = _verdict(held, against, missing)
    if len(claim.leaves) == 1:
        return Judgement(verdict, claim.ours(rule), _why(p, verdict, against if verdict == "not held" else held))
    # As much as the whole claim's: it is not held by its weakest part, and held by all.
    several = len(claim.leaves) if rule.corrected else 1
    least = min(leaf.p(rule).against for leaf in claim.leaves)
    more = _ratio(held, p.held, most), _ratio(against, least, most * several)
    parts = tuple(_part(leaf, rule, *more) for leaf in claim.leaves)
    deciding = [part.why for part in parts if part.verdict == verdict]
    reasons = "; ".join(dict.fromkeys(deciding[:_REASONS])) + ("; …" if len(deciding) > _REASONS else "")
    why = f"{len(deciding)} of {len(parts)} parts {verdict}: {reasons}"
    return Judgement(verdict, claim.ours(rule), why, parts)


def _part(leaf: Evidence, rule: Rule, held: float, against: float) -> Judgement:
    """One of several, its p as many times as the whole claim's is adjusted by."""
    p = leaf.p(rule)
    for_, against_ = min(1.0, held * p.held), min(1.0, against * p.against)
    verdict = _verdict(for_, against_, isinstance(leaf, Missing))
    return Judgement(verdict, leaf.ours(rule), _why(p, verdict, against_ if verdict == "not held" else for_))


def _verdict(held: float, against: float, missing: bool) -> Verdict:
    if against < LEVEL:
        return "not held"
    if missing:
        return "not run"
    return "held" if held < LEVEL else "not decided"


def _ratio(adjusted: float, found: float, most: int) -> float:
    """By how much p was multiplied; where that does not show, as it ended at 0 or 1, the most that it can be."""
    return adjusted / found if found > 0 and adjusted < 1 else most


def _why(p: P, verdict: Verdict, adjusted: float | None = None) -> str:
    """What a verdict rests on, with the adjusted p where there is another."""
    found, words = (p.against, p.otherwise) if verdict == "not held" else (p.held, p.words)
    said = words.format(p=found)
    if adjusted is None or adjusted == found or said == words:
        return said
    return f"{said}, Holm's {adjusted:.2g}"
