"""Whether a claim held is decided by one rule, which was fixed before the runs.

Runs with the same seed share initial weights and data, so their differences are tested: by the paired t-test,
one-sided, at a level of 5 %, with at least five seeds (three for detection, segmentation, translation and style, whose
runs are long). The level is corrected by Holm's method over all claims of the paper in an experiment that are tested,
and separately over our own bars. A claim is held if the difference is significant in its direction, not held if it is
significant in the other direction, and not decided otherwise. A claim that two methods are alike is held if they differ
by significantly less than a stated margin (two one-sided tests), and not held if they differ by significantly more. A
claim of several parts is held if all parts are, and not held if any part is not; the p-value of that part is multiplied
by the number of parts. Counts are compared without a test. A claim about runs that a smaller scale leaves out is not
run. None of the seeds was used to choose a set-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whitenorm_lab.claims.evidence import Comparison, Evidence, NotRun, PValues
from whitenorm_lab.claims.rules import LEVEL, MIN_SEEDS, adjust_by_holm

Verdict = Literal["held", "not held", "not decided", "not run"]
# At most so many parts of a claim are quoted in its explanation.
_MAX_REASONS = 3


@dataclass(frozen=True)
class Judgement:
    """Verdict on a claim, with the measured values and an explanation."""

    verdict: Verdict
    ours: str
    why: str = ""
    parts: tuple[Judgement, ...] = ()
    """One per part if the claim has several, at the level of the whole claim."""


def judge(claims: Sequence[Evidence], min_seeds: int = MIN_SEEDS) -> list[Judgement]:
    """Judge the claims of one experiment together; comparisons of fewer seeds than ``min_seeds`` are not decided.

    Example::

        >>> from whitenorm_lab.claims.evidence import lower
        >>> judge([lower([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], ("DBN", "BN"))], min_seeds=3)[0].verdict
        'held'
    """
    p_values = [claim.compute_p_values(min_seeds) for claim in claims]
    tested = [i for i, claim in enumerate(claims) if any(isinstance(leaf, Comparison) for leaf in claim.leaves)]
    held = dict(zip(tested, adjust_by_holm([p_values[i].held for i in tested]), strict=True))
    against = dict(zip(tested, adjust_by_holm([p_values[i].against for i in tested]), strict=True))
    return [
        _judge_claim(claim, min_seeds, p, held.get(i, p.held), against.get(i, p.against), len(tested))
        for i, (claim, p) in enumerate(zip(claims, p_values, strict=True))
    ]


def _judge_claim(
    claim: Evidence, min_seeds: int, p: PValues, held: float, against: float, max_factor: int
) -> Judgement:
    """Judge a claim by its adjusted p-values."""
    if len(claim.leaves) == 1:
        return _judge_single(claim, p, held, against)
    # The parts' p-values are multiplied by the same factors as the claim's.
    least = min(leaf.compute_p_values(min_seeds).against for leaf in claim.leaves)
    held_factor = _compute_factor(held, p.held, max_factor)
    against_factor = _compute_factor(against, least, max_factor * len(claim.leaves))
    parts = []
    for leaf in claim.leaves:
        p = leaf.compute_p_values(min_seeds)
        adjusted = min(1.0, held_factor * p.held), min(1.0, against_factor * p.against)
        parts.append(_judge_single(leaf, p, *adjusted))
    verdict = _decide(held, against, any(isinstance(leaf, NotRun) for leaf in claim.leaves))
    deciding = [part.why for part in parts if part.verdict == verdict]
    reasons = "; ".join(dict.fromkeys(deciding[:_MAX_REASONS])) + ("; …" if len(deciding) > _MAX_REASONS else "")
    why = f"{len(deciding)} of {len(parts)} parts {verdict}: {reasons}"
    return Judgement(verdict, claim.describe(), why, tuple(parts))


def _judge_single(claim: Evidence, p: PValues, held: float, against: float) -> Judgement:
    """Judge a claim without parts, or one part, by its adjusted p-values."""
    verdict = _decide(held, against, isinstance(claim.leaves[0], NotRun))
    why = _explain(p.otherwise, p.against, against) if verdict == "not held" else _explain(p.words, p.held, held)
    return Judgement(verdict, claim.describe(), why)


def _decide(held: float, against: float, is_missing: bool) -> Verdict:
    if against < LEVEL:
        return "not held"
    if is_missing:
        return "not run"
    return "held" if held < LEVEL else "not decided"


def _compute_factor(adjusted: float, p: float, max_factor: int) -> float:
    """Return the factor by which a p-value was adjusted; the largest possible one if p is 0 or was clipped to 1."""
    return adjusted / p if p > 0 and adjusted < 1 else max_factor


def _explain(words: str, p: float, adjusted: float) -> str:
    """Format the p-value, and the adjusted one if it differs."""
    text = words.format(p=p)
    return text if adjusted == p or text == words else f"{text}, Holm's {adjusted:.2g}"
