"""The DBN paper's experiments on faces: grid search, step times, and losses after equal time."""

import math

import pytest
import torch

import whitenorm
from lab.tests.helpers.judging import get_verdict, judge_one
from whitenorm_lab.claims.experiment import Context
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.digits import Split
from whitenorm_lab.fitting import fit
from whitenorm_lab.nets.nnn import NaturalNetwork
from whitenorm_lab.papers.shared import faces

SCALE = {
    "hidden": [8, 4],
    "lrs": [0.001, 0.5, 1e9],
    "dampings": [0.1, 1],
    "intervals": [2, 3],
    "steps": 6,
    "points": 3,
    "batch_size": None,
}


@pytest.fixture
def train():
    images = torch.randn(40, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    return Split(images, torch.arange(40) % 4)


def make_training_run(method, seed, losses, **settings):
    values = {"step": [*range(1, len(losses) + 1)], "loss": losses, "final": losses[-1], "chosen": {"lr": 1}}
    return Run({"method": method, **settings}, seed, values, 0.0)


def make_timing_runs(seconds, seeds=3):
    """Make timing runs from the seconds per step of each method, given by name or by (name, group size)."""
    methods = [
        {"method": name} if isinstance(name, str) else {"method": name[0], "group_size": name[1]} for name in seconds
    ]
    values = {"step_seconds": list(seconds.values()), "refresh_seconds": 0.5}
    return [Run({"timed": methods, "rounds": 3}, seed, values, 0.0) for seed in range(seeds)]


def test_search_takes_the_lowest_loss(train):
    shares = []
    torch.manual_seed(0)
    values, states = faces.search(
        faces.build_search_settings("plain", SCALE), Context(0, progress=shares.append), train, 4
    )
    assert values["chosen"] == {"lr": 0.5}
    assert values["final"] == values["loss"][-1] == min(values["tried"])
    assert len(values["tried"]) == 3
    assert values["tried"][2] == math.inf
    assert len(states) == 3
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_states_are_those_of_the_best_run(train):
    settings = faces.build_search_settings("BN", {**SCALE, "lrs": [0.5, 0.001]})
    torch.manual_seed(0)
    values, states = faces.search(settings, Context(0), train, 4)
    torch.manual_seed(0)
    again = faces.build_network(settings, train.images, 4)
    fit(again, train, lr=0.5, steps=6, points=3)
    assert values["chosen"] == {"lr": 0.5}
    assert torch.equal(states[-1]["1.weight"], again[1].weight)
    assert not torch.equal(states[0]["1.weight"], states[1]["1.weight"])


def test_search_of_a_natural_network_has_three_parameters(train):
    values, states = faces.search(faces.build_search_settings("NNN", SCALE), Context(0), train, 4)
    assert len(values["tried"]) == 3 * 2 * 2
    assert set(values["chosen"]) == {"lr", "damping", "interval"}
    model = faces.build_network(faces.build_search_settings("NNN", SCALE), train.images, 4, 0.1, 2)
    assert isinstance(model, NaturalNetwork)
    model.load_state_dict(states[-1])


def test_dbn_has_its_group_size_and_no_affine_parameters():
    model = faces.build_network(faces.build_search_settings("DBN", SCALE, 2), torch.zeros(1), 4)
    norms = [layer for layer in model if isinstance(layer, whitenorm.DecorrelatedBatchNorm)]
    assert [(norm.group_size, norm.weight) for norm in norms] == [(2, None)] * 2


def test_initial_weights_are_lecuns():
    first = faces.build_network(faces.build_search_settings("plain", {**SCALE, "hidden": [500]}), torch.zeros(1), 4)[1]
    assert first.weight.std().item() == pytest.approx(1024**-0.5, rel=0.02)
    assert not first.bias.any()


def test_equal_time_is_the_end_of_the_fastest_method():
    # The slow method is lower after its last step, but not at the time when the other has made all of its.
    runs = [make_training_run("quick", seed, [3.0, 1.0 + seed / 100]) for seed in range(3)]
    runs += [make_training_run("slow", seed, [2.0 + seed / 100, 0.0]) for seed in range(3)]
    results = Results(runs + make_timing_runs({"quick": 1.0, "slow": 2.0}))
    result = judge_one(faces.lower_after_equal_time(results, "quick", ["slow"]))
    assert result.verdict == "held"
    assert result.ours.startswith("after 2 s:")
    assert get_verdict(faces.lower_after_equal_time(results, "slow", ["quick"])) == "not held"


def test_a_diverged_method_does_not_set_the_time():
    runs = [make_training_run("quick", seed, [3.0, 1.0 + seed / 100]) for seed in range(3)]
    runs += [make_training_run("slow", seed, [3.0, math.inf]) for seed in range(3)]
    result = judge_one(
        faces.lower_after_equal_time(Results(runs + make_timing_runs({"quick": 1.0, "slow": 0.05})), "quick", ["slow"])
    )
    assert result.verdict == "held"
    assert result.ours.startswith("after 2 s:")


def test_group_size_selects_only_runs_with_dbn():
    runs = [
        make_training_run("DBN", s, [loss + s / 100], group_size=g)
        for g, loss in ((1, 9.0), (16, 1.0))
        for s in range(3)
    ]
    runs += [make_training_run("BN", seed, [2.0 + seed / 100]) for seed in range(3)]
    results = Results(runs + make_timing_runs({("DBN", 1): 1.0, ("DBN", 16): 1.0, "BN": 1.0}))
    assert get_verdict(faces.lower_after_equal_time(results, "DBN", ["BN"], group_size=16)) == "held"
    assert get_verdict(faces.lower_after_equal_time(results, "DBN", ["BN"], group_size=1)) == "not held"


def test_seconds_use_the_step_times_of_the_seed_and_the_refreshes_of_nnn():
    natural = make_training_run("NNN", 1, [3.0] * 5)
    natural.values["chosen"]["interval"] = 2
    times = make_timing_runs({"BN": 0.25, "NNN": 1.0})
    times[1].values["step_seconds"] = [0.125, 2.0]
    runs = faces.add_seconds(Results([natural, make_training_run("BN", 1, [3.0] * 2), *times]))
    # Before steps 1, 3 and 5 there is a refresh, of half a second.
    assert runs.values("seconds", method="NNN") == [[2.5, 4.5, 7.0, 9.0, 11.5]]
    assert runs.values("seconds", method="BN") == [[0.125, 0.25]]
    assert len(runs) == 2


def test_step_times_measure_refreshes_of_nnn_separately(train, monkeypatch):
    methods = [
        faces.build_search_settings("BN", SCALE),
        faces.build_search_settings("NNN", SCALE),
        faces.build_search_settings("DBN", SCALE, 2),
    ]
    steps = {}

    def fake_interleaved(runs, rounds):
        steps.update(runs)
        for run in runs.values():
            run()
        assert rounds == 3
        return {name: [1.0, 2.0, 9.0] if name == "refresh" else [4.0, 5.0, 6.0] for name in runs}

    monkeypatch.setattr(faces, "time_interleaved", fake_interleaved)
    values = faces.measure_step_times(faces.build_timing_settings(methods, 3), train, 4)
    assert values == {"step_seconds": [5.0] * 3, "refresh_seconds": 2.0}
    refreshed = []
    monkeypatch.setattr(NaturalNetwork, "refresh", lambda network: refreshed.append(network))
    steps["1"]()
    assert refreshed == []


def test_format_lists_all_chosen_values():
    runs = [
        Run({}, seed, {"chosen": {"lr": lr, "damping": 0.1, "interval": 50}}, 0.0) for seed, lr in enumerate((0.5, 0.2))
    ]
    assert faces.format_chosen(Results(runs)) == "lr 0.2/0.5, ε 0.1, T 50"
