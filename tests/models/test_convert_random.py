"""Random conversions of the fuzzer, and checks that the fuzzer finds errors."""

import pytest

from tests.helpers import conversion_cases
from tests.helpers.conversion_cases import run_conversion
from whitenorm.models import recipes, transfer


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_random_conversions_lose_nothing_and_warn_of_changes(first):
    problems = {seed: run_conversion(seed) for seed in range(first, first + 100)}
    assert {seed: messages for seed, messages in problems.items() if messages} == {}


def test_every_source_and_target_is_drawn():
    cases = [conversion_cases.draw_conversion(seed) for seed in range(600)]
    assert {case.source for case in cases} == set(conversion_cases.SOURCES)
    assert {case.target for case in cases} == set(conversion_cases.TARGETS)


def find_problems(seeds=120):
    return "\n".join(problem for seed in range(seeds) for problem in run_conversion(seed))


def test_a_missing_warning_is_found(monkeypatch):
    monkeypatch.setattr(recipes, "describe_output_change", lambda *args: "")
    assert "no warning where the output is off" in find_problems()


@pytest.mark.filterwarnings("ignore:this model is trained")
def test_a_needless_warning_is_found(monkeypatch):
    monkeypatch.setattr(recipes, "describe_output_change", lambda *args: "all changes")
    monkeypatch.setattr(recipes, "is_trained", lambda module: True)
    problems = find_problems()
    assert "a warning where the output is kept" in problems
    assert "a warning of a model that is not trained" in problems


def test_a_lost_population_is_found(monkeypatch):
    monkeypatch.setattr(transfer, "_transfer_population", lambda new, norm: None)
    assert "eval output off by" in find_problems()


def test_parameters_with_a_wrong_requires_grad_are_found(monkeypatch):
    monkeypatch.setattr(transfer, "transfer_requires_grad", lambda new, norm: new.requires_grad_())
    assert "with requires_grad=True" in find_problems()
