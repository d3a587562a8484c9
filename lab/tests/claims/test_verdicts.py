"""Verdicts: the paired t-test, pairs of seeds, Holm's correction, and claims of several parts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lab.tests.helpers.judging import get_verdict, judge_one
from whitenorm_lab.claims.evidence import alike, at_most, every, exactly, lower, not_run
from whitenorm_lab.claims.rules import LEVEL, MIN_SEEDS, adjust_by_holm
from whitenorm_lab.claims.verdicts import judge

NAMES = ("one", "other")


def test_lower():
    low, high = [1.0, 1.1, 0.9], [2.0, 2.2, 1.8]
    assert get_verdict(lower(low, high, NAMES)) == "held"
    assert get_verdict(lower(high, low, NAMES)) == "not held"
    assert get_verdict(lower(low, [1.05, 1.1, 0.95], NAMES)) == "not decided"
    assert get_verdict(lower(low[:2], high[:2], NAMES)) == "not decided"
    assert get_verdict(lower(low, high, NAMES, margin=0.5)) == "held"
    assert get_verdict(lower(low, high, NAMES, margin=2.0)) == "not held"
    assert judge([lower(low, high, NAMES)])[0].why == f"fewer than {MIN_SEEDS} seeds"


def test_no_spread():
    assert get_verdict(lower([1.0] * 3, [2.0] * 3, NAMES)) == "held"
    assert get_verdict(lower([1.0] * 3, [1.0] * 3, NAMES)) == "not decided"


def test_a_printed_number_has_no_spread():
    ours = [1.0, 1.1, 0.9]
    assert get_verdict(at_most(ours, 2.0, NAMES)) == "held"
    assert get_verdict(at_most(ours, 0.5, NAMES)) == "not held"
    assert get_verdict(at_most(ours, 1.05, NAMES)) == "not decided"
    assert get_verdict(at_most(ours[:2], 2.0, NAMES)) == "not decided"
    expected = stats.ttest_1samp(ours, 1.2, alternative="less").pvalue
    assert judge_one(at_most(ours, 1.2, NAMES)).why == f"p = {expected:.2g}"
    assert judge_one(at_most(ours, 1.2, NAMES)).ours == "one 1 ± 0.1, other 1.2"


def test_diverged_runs():
    low, none = [1.0, 1.1, 0.9], [math.inf] * 3
    assert get_verdict(lower(low, none, NAMES)) == "held"
    assert get_verdict(lower(none, low, NAMES)) == "not held"
    assert get_verdict(lower(low, [math.inf, 1.0, 1.0], NAMES)) == "not decided"
    assert get_verdict(lower(none, none, NAMES)) == "not decided"
    assert get_verdict(lower([math.nan] * 3, none, NAMES)) == "not decided"
    assert get_verdict(alike(low, none, NAMES, margin=1.0)) == "not held"


def test_alike():
    assert get_verdict(alike([1.0, 1.1, 0.9], [1.0, 1.05, 0.95], NAMES, margin=0.5)) == "held"
    assert get_verdict(alike([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], NAMES, margin=0.5)) == "not held"
    assert get_verdict(alike([1.0, 1.9, 0.1], [1.0, 2.0, 0.5], NAMES, margin=0.5)) == "not decided"


def test_pairs_differ_by_less_than_seeds_do():
    one, other = [1.0, 3.0, 5.0], [1.2, 3.3, 5.1]
    assert get_verdict(lower(one, other, NAMES)) == "held"
    assert get_verdict(lower(one, [5.1, 1.2, 3.3], NAMES)) == "not decided"
    assert get_verdict(lower(other, one, NAMES)) == "not held"
    assert get_verdict(lower(one, [1.2, 2.7, 5.1], NAMES)) == "not decided"
    assert get_verdict(lower(one[:2], other[:2], NAMES)) == "not decided"
    assert get_verdict(lower(one, other, NAMES, margin=0.01)) == "held"
    assert get_verdict(lower(one, other, NAMES, margin=1.0)) == "not held"
    assert judge_one(lower(one, other, NAMES)).ours.endswith("difference -0.2 ± 0.1")


def test_the_paired_test_is_students():
    one, other = [1.0, 1.1, 0.9, 1.3], [1.5, 1.2, 1.9, 1.2]
    expected = stats.ttest_rel(one, other, alternative="less").pvalue
    assert judge_one(lower(one, other, NAMES)).why == f"p = {expected:.2g}"
    shifted = stats.ttest_rel(other, np.add(one, 0.5), alternative="less").pvalue
    assert f"p = {shifted:.2g}" in judge_one(alike(one, other, NAMES, margin=0.5)).why


def test_pairs_without_spread_or_of_different_seeds():
    assert get_verdict(lower([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], NAMES)) == "held"
    assert get_verdict(lower([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], NAMES)) == "not decided"
    # Differences that are equal except for rounding.
    assert get_verdict(lower([0.1, 0.2, 0.3], [1.1, 1.2, 1.3], NAMES)) == "held"
    with pytest.raises(ValueError, match="expected values of the same seeds"):
        judge_one(lower([1.0, 1.1, 0.9], [2.0, 2.1, 1.9, 2.0], NAMES))


def test_alike_pairs():
    one = [1.0, 3.0, 5.0]
    assert get_verdict(alike(one, [1.1, 2.9, 5.0], NAMES, margin=0.5)) == "held"
    assert get_verdict(alike(one, [2.9, 5.0, 1.1], NAMES, margin=0.5)) == "not decided"
    assert get_verdict(alike(one, [2.0, 4.1, 5.9], NAMES, margin=0.5)) == "not held"
    assert get_verdict(alike(one, [1.0, 3.9, 4.2], NAMES, margin=0.5)) == "not decided"


def test_level_of_the_test():
    # Two equal methods are found different by chance in about one of twenty comparisons, in each direction.
    draws = np.random.default_rng(0).normal(size=(1000, 2, 5))
    verdicts = [get_verdict(lower(one, other, NAMES)) for one, other in draws.tolist()]
    assert 0.03 < verdicts.count("held") / 1000 < 0.07
    assert 0.03 < verdicts.count("not held") / 1000 < 0.07


@pytest.mark.parametrize("claims", [1, 4, 10])
def test_level_of_an_experiment(claims):
    """Whatever the number of claims: if none is true, any is called held in at most one of twenty experiments."""
    draws = np.random.default_rng(claims).normal(size=(400, claims, 2, 5)).tolist()
    wrong = [any(one.verdict == "held" for one in judge([lower(*pair, NAMES) for pair in entry])) for entry in draws]
    assert 0.02 < sum(wrong) / 400 < 0.07


def test_level_of_a_claim_with_parts():
    draws = np.random.default_rng(3).normal(size=(400, 8, 2, 5)).tolist()
    wrong = [get_verdict(every(*(lower(*pair, NAMES) for pair in entry)), MIN_SEEDS) == "not held" for entry in draws]
    assert 0.02 < sum(wrong) / 400 < 0.07


def test_holm():
    # By definition: in ascending order, reject each p below the level divided by the number of those remaining, up to
    # the first that is not.
    samples = np.random.default_rng(5).uniform(0, 0.04, size=(200, 6)).tolist()
    for values in samples:
        expected, remaining = set(), len(values)
        for place in np.argsort(values):
            if values[place] >= LEVEL / remaining:
                break
            expected.add(place)
            remaining -= 1
        assert {i for i, p in enumerate(adjust_by_holm(values)) if p < LEVEL} == expected


def test_counts_and_missing_runs_are_not_corrected_for():
    close = lower([1.0, 3.0, 5.0, 7.0, 9.0], [1.2, 3.3, 5.1, 7.4, 9.05], NAMES)
    alone = judge([close])[0]
    beside = judge([close, exactly(True, "1"), not_run()])
    assert [one.verdict for one in beside] == ["held", "held", "not run"]
    assert beside[0] == alone
    # With a second tested claim, the first p-value is doubled, which the explanation says.
    both = judge([close, lower([1.0] * 5, [0.5, 2.0, 0.9, 1.1, 1.0], NAMES)])
    assert both[0].why.startswith(f"{alone.why}, Holm's ")


def test_parts():
    yes, no = exactly(True, ""), exactly(False, "")
    open_ = lower([1.0], [2.0], NAMES)
    assert get_verdict(every(yes, yes)) == "held"
    assert get_verdict(every(yes, open_)) == "not decided"
    assert get_verdict(every(yes, open_, no)) == "not held"
    nested = every(every(yes, open_), every(open_))
    assert judge_one(nested).why == f"2 of 3 parts not decided: {judge_one(open_).why}"
    assert get_verdict(every(yes, not_run())) == "not run"
    assert get_verdict(every(yes, not_run(), exactly(False, "2"))) == "not held"


def test_deciding_parts_are_explained():
    good, bad = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.1, 4.0, 5.1, 6.0]), ([5.0, 4.1, 3.0, 2.0, 1.0], [1.0] * 5)
    claim = every(lower(*good, NAMES), lower(*bad, NAMES), lower(*good[::-1], NAMES))
    judgement = judge([claim, lower(*good, NAMES)])[0]
    assert judgement.verdict == "not held"
    assert judgement.why.startswith("1 of 3 parts not held: the other way, p = ")


def test_each_part_has_its_own_verdict():
    good, bad = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.1, 4.0, 5.1, 6.0]), ([5.0, 4.1, 3.0, 2.0, 1.0], [1.0] * 5)
    claim = replace(every(every(lower(*good, NAMES), lower(*bad, NAMES)), not_run()), prefix="after 1 s: ")
    judgement = judge([claim, lower(*good, NAMES)])[0]
    assert [part.verdict for part in judgement.parts] == ["held", "not decided", "not run"]
    assert judgement.parts[0].ours == f"after 1 s: {lower(*good, NAMES).describe()}"
    parts = "; ".join(part.ours.removeprefix("after 1 s: ") for part in judgement.parts)
    assert judgement.ours == f"after 1 s: {parts}"
    assert judge_one(lower(*good, NAMES), MIN_SEEDS).parts == ()


def test_parts_show_their_adjusted_p_value():
    close = ([1.0, 3.0, 5.0, 7.0, 9.0], [1.2, 3.3, 5.1, 7.4, 9.05])
    claim = every(lower(*close, NAMES), exactly(True, "1"))
    first = judge([claim, *[lower(*close, NAMES)] * 9])[0].parts[0]
    assert first.verdict == "not decided"
    assert ", Holm's " in first.why


def test_parts_are_corrected_although_the_claim_has_p_1():
    """The factor cannot be computed from the claim's adjusted p-value, which is clipped to 1."""
    close, none = ([1.0, 3.0, 5.0, 7.0, 9.0], [1.2, 3.3, 5.1, 7.4, 9.05]), ([1.0, 2.0, 3.0, 4.0, 5.0],) * 2
    claim = every(lower(*close, NAMES), lower(*none, NAMES))
    assert get_verdict(lower(*close, NAMES), MIN_SEEDS) == "held"
    assert [part.verdict for part in judge([claim])[0].parts] == ["held", "not decided"]
    judgement = judge([claim, *[lower(*none, NAMES)] * 9])[0]
    assert [part.verdict for part in judgement.parts] == ["not decided", "not decided"]
