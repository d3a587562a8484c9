"""The fuzzer: some cases of it, and that it can fail."""

import pytest
import torch

from tests.helpers import fuzz, fuzz_compiled, fuzz_ranks, ranks
from whitenorm.ops import dispatch, fixed_map, whiten
from whitenorm.solvers import spectral


@pytest.mark.usefixtures("kernels")
def test_no_case_deviates():
    tally, deviations = fuzz.fuzz(0, cases=150)
    assert tally["compared"] > 100
    assert not deviations


def test_a_time_is_kept():
    tally, _ = fuzz.fuzz(0, seconds=0.2)
    assert 0 < tally["compared"] + tally["finite"] < 150


def of_layer(name, cases=40):
    return [seed for seed in range(2000) if fuzz.draw(seed).name == name and fuzz.draw(seed).degenerate is None][:cases]


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_wrong_gradient_is_found(factor, monkeypatch):
    """The fuzzer finds an error of one percent in ZCA's backward."""
    right = spectral._differentiate_inverse_root
    monkeypatch.setattr(spectral, "_differentiate_inverse_root", lambda *tensors: factor * right(*tensors))
    seeds = [seed for seed in of_layer("bw", 400) if fuzz.draw(seed).solver == "zca" and fuzz.draw(seed).training]
    found = [deviation for seed in seeds[:20] for deviation in fuzz.run(seed)[0]]
    assert len({deviation.seed for deviation in found}) >= 10
    assert {deviation.what for deviation in found} == {"input"}


def test_a_result_that_is_not_finite_is_found(monkeypatch):
    # Of torch's kernels, because the compiled ones whiten samples in one call without this step.
    monkeypatch.setattr(dispatch, "_mode", "torch")
    right = dispatch.TORCH.input_gradient
    wrong = dispatch.TORCH._replace(input_gradient=lambda *args: right(*args).mul_(torch.nan))
    monkeypatch.setattr(dispatch, "TORCH", wrong)
    assert any("not finite" in deviation.what for seed in of_layer("iw", 3) for deviation in fuzz.run(seed)[0])


def test_a_seed_gives_the_same_case():
    assert fuzz.draw(7) == fuzz.draw(7) != fuzz.draw(8)
    assert "dtype" in str(fuzz.draw(7))


@pytest.fixture
def single_rank(tmp_path):
    with ranks.gloo(tmp_path / "store"):
        yield


@pytest.mark.usefixtures("single_rank")
def test_wrong_results_over_ranks_are_found(monkeypatch):
    """The fuzzer finds errors of one percent in the statistics and their gradient, and a missing error."""
    assert not fuzz_ranks.compare_all(0, 1, 0, cases=20)[1]
    gradient, moments = whiten.reduce_gradient, whiten.reduce_moments

    def wrong_gradient(local, group, messages):
        right = gradient(local, group, messages)
        return right if group is None else right._replace(offset=1.01 * right.offset)

    def wrong_moments(local, group, messages):
        right = moments(local, group, messages)
        return right if group is None else right._replace(cov=1.01 * right.cov)

    for name, wrong in (("reduce_gradient", wrong_gradient), ("reduce_moments", wrong_moments)):
        with monkeypatch.context() as patch:
            patch.setattr(whiten, name, wrong)
            assert len(fuzz_ranks.compare_all(0, 1, 0, cases=20)[1]) > 10, name
    monkeypatch.setattr(whiten, "check_valid_count", lambda *_: None)
    assert any("no error for a single value" in line for line in fuzz_ranks.compare_all(0, 1, 0, cases=20)[1])


@pytest.mark.slow
def test_no_compiled_layer_deviates():
    assert fuzz_compiled.fuzz(0, 12, None) == (12, [])


def test_a_layer_that_returns_a_view_is_found(monkeypatch):
    """Compilers refuse to change the output of an autograd function in place where it is a view."""

    right = whiten.run_into

    def wrong(step, layout, like, *given):
        if torch.compiler.is_compiling():
            return layout.join(step(*given, None), like)
        return right(step, layout, like, *given)

    for module in (whiten, fixed_map):
        monkeypatch.setattr(module, "run_into", wrong)
    seeds = [seed for seed in range(100) if fuzz_compiled.draw(seed).tool in ("compile", "export")][:6]
    assert sum(bool(fuzz_compiled.run(seed)) for seed in seeds) >= 3
