"""Experiments that train image classifiers: smaller scales, rates tuned on held-out images, claims, pictures."""

import json
import math

import pytest

from lab.tests.helpers.judging import judge_one
from whitenorm_lab.claims.experiment import Context
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.claims.rules import MIN_SEEDS
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.shared.classification import (
    _collect_values,
    build_experiment,
    get_final_values,
    lower_error,
    run,
    select_tuned_runs,
    variants,
)
from whitenorm_lab.papers.shared.scaling import describe_reduction, reduce_config
from whitenorm_lab.training import Train
from whitenorm_lab.training.result import Epoch, TrainingResult

FACTS = {"paper": "DBN", "where": "fig. 0", "title": "rates", "cost": "1 s"}
NORMS = {"BN": {"norm": "bn"}, "DBN": {"norm": "dbn", "group_size": 16}}
TRAININGS = [name for name, one in EXPERIMENTS.items() if one.run is run]


@pytest.fixture(scope="module")
def experiment():
    """Two cases, one with another optimizer, and a grid for both."""
    base = Train(net="wrn-28-10", dataset="digits", validation_images=20, epochs=10, milestones=(5,))
    return build_experiment(
        "mine",
        variants(base, {"SGD": {}, "Adam": {"optimizer": "adam"}}, NORMS),
        (lower_error("DBN, SGD", "BN, SGD", "yes"), lower_error("DBN, Adam", "BN, Adam", "yes")),
        rates={"sgd": (0.1, 0.2, 0.4), "adam": (0.001, 0.01)},
        reduced={
            "cases": ["SGD"],
            "nets": {"wrn-28-10": "wrn-10-1"},
            "group_share": 0.25,
            "rates": {"sgd": [0.1, 0.4]},
            "train_images": 100,
            "test_images": 50,
            "epochs": 2,
        },
        smoke={"variants": ["DBN, SGD", "BN, Adam"], "rates": {"sgd": [0.1], "adam": [0.01]}},
        **FACTS,
    )


def test_group_size_shrinks_with_the_net():
    sizes = [reduce_config(Train(**options), {"group_share": 0.25}).group_size for options in NORMS.values()]
    assert sizes == [None, 4]
    assert reduce_config(Train(norm="dbn", group_size=16), {}).group_size == 16
    assert reduce_config(Train(norm="iternorm", group_size=1), {"group_share": 0.1}).group_size == 1


@pytest.mark.parametrize(
    ("norm", "where", "images"),
    [("bn", "all", 5000), ("dbn", "l1", 5000), ("gw", "s1-b2", 5000), ("gw", "all", None), ("none", "all", None)],
)
def test_norms_with_population_statistics_are_recalibrated(norm, where, images):
    assert reduce_config(Train(norm=norm, where=where), {}).recalibrate == images
    assert reduce_config(Train(norm=norm, where=where), {"recalibrate": None}).recalibrate is None


def test_every_experiment_recalibrates():
    for name in TRAININGS:
        for settings in EXPERIMENTS[name].plan(EXPERIMENTS[name].scales["default"]):
            has_no_population = settings.get("norm") in ("gn", "gw") and settings.get("where", "all") == "all"
            assert settings["recalibrate"] == (None if has_no_population else 5000), settings


def test_plan_has_every_learning_rate(experiment):
    plan = experiment.plan(experiment.scales["default"])
    assert [(one["variant"], one["lr"]) for one in plan] == [
        (f"{norm}, SGD", lr) for norm in ("BN", "DBN") for lr in (0.1, 0.4)
    ]
    assert {one["net"] for one in plan} == {"wrn-10-1"}
    assert [one.get("group_size") for one in plan] == [None, None, 4, 4]
    assert json.loads(json.dumps(plan)) == plan
    assert len(experiment.plan({})) == 2 * (3 + 2)
    assert [one["variant"] for one in experiment.plan(experiment.scales["smoke"])] == ["DBN, SGD", "BN, Adam"]


def test_the_reduction_is_described(experiment):
    assert experiment.reduction == (
        "Run here with WRN-10-1 instead of WRN-28-10, 100 instead of 49,980 training images, 2 instead of 10 epochs "
        "and 2 instead of 3 learning rates."
    )
    assert experiment.stand_ins == {"WRN-28-10": "WRN-10-1"}
    assert (
        describe_reduction(Train(net="vgg-a"), {"width": 8})
        == "Run here with 8 instead of 64 channels in the first layer."
    )
    assert describe_reduction(Train(), {}) == ""


@pytest.mark.parametrize("name", TRAININGS)
def test_every_reduction_is_described(name):
    one = EXPERIMENTS[name]
    assert f"{one.scales['default']['epochs']} instead of" in one.reduction or name == "gw-df"
    assert min(one.seeds["default"], one.seeds["paper"]) >= MIN_SEEDS
    if "nets" in one.scales["default"]:
        assert all(net["net"] in one.scales["default"]["nets"].values() for net in one.plan(one.scales["default"]))


def make_runs(variant, lr, held_out, test, seeds=5):
    """Make runs with about these errors: four epochs with two tests."""
    return [
        Run(
            {"variant": variant, "lr": lr},
            seed,
            {
                "train_error": [90.0, 80.0, 70.0, test],
                "test_error": [80.0, test + seed / 10],
                "held_out_error": held_out + seed / 10,
            },
            1.0,
        )
        for seed in range(seeds)
    ]


@pytest.fixture
def results():
    """On held-out images BN does best at 0.1 and DBN at 0.4; on test images each does better at the other rate."""
    return Results(
        make_runs("BN, SGD", 0.1, 40.0, 41.0)
        + make_runs("BN, SGD", 0.4, 45.0, 20.0)
        + make_runs("DBN, SGD", 0.1, 39.0, 10.0)
        + make_runs("DBN, SGD", 0.4, 30.0, 31.0)
    )


def test_learning_rates_are_chosen_on_held_out_images(experiment, results):
    assert [select_tuned_runs(results, f"{norm}, SGD").levels("lr") for norm in ("BN", "DBN")] == [[0.1], [0.4]]
    assert get_final_values(results, "test_error", "BN, SGD") == [41 + seed / 10 for seed in range(5)]
    first, second = (judge_one(claim.judge(results), MIN_SEEDS) for claim in experiment.claims)
    assert (first.verdict, second.verdict) == ("held", "not run")
    assert first.ours.startswith("lr 0.4 and 0.1: DBN 31.2 ± 0.16, BN 41.2 ± 0.16")


def test_a_rate_that_diverged_is_not_chosen(results):
    results[14].values["held_out_error"] = math.inf
    for one in results.where(variant="DBN, SGD", lr=0.4):
        one.values["held_out_error"] = math.nan
    assert select_tuned_runs(results, "DBN, SGD").levels("lr") == [0.1]


def test_results_without_rates_are_judged_as_before(experiment):
    old = Results(
        Run({"variant": f"{norm}, SGD"}, seed, {"train_error": [50.0], "test_error": [error + seed / 10]}, 1.0)
        for norm, error in (("BN", 50), ("DBN", 40))
        for seed in range(5)
    )
    first = judge_one(experiment.claims[0].judge(old), MIN_SEEDS)
    assert first.verdict == "held"
    assert first.ours.startswith("DBN 40.2 ± 0.16, BN 50.2 ± 0.16")
    assert experiment.draw(old).axes


def test_claims_name_a_common_case_once():
    assert lower_error("DBN, 20 layers", "BN, 20 layers", "").text == "20 layers: DBN has a lower test error than BN"
    assert lower_error("T = 5", "T = 7", "").text == "T = 5 has a lower test error than T = 7"
    assert lower_error("GW, S1", "BN, Res-50", "").text == "GW, S1 has a lower test error than BN, Res-50"


def test_picture(experiment, results):
    figure = experiment.draw(results)
    (panel,) = (axes for axes in figure.axes if axes.lines)
    assert (panel.get_xlabel(), panel.get_ylabel(), panel.get_title()) == ("epoch", "error (%)", "SGD")
    assert panel.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["BN", "DBN", "training", "test"]
    # A training error per epoch, tests after the second and the fourth.
    assert [list(line.get_xdata()) for line in panel.lines] == [[1, 2, 3, 4], [2, 4]] * 2
    assert [line.get_linestyle() for line in panel.lines] == ["-", "--"] * 2


def test_picture_names_the_net_and_groups_that_ran():
    values = {"train_error": [50.0], "test_error": [50.0]}
    wrn = EXPERIMENTS["iternorm-wrn"].draw(
        Results([Run({"variant": "BN, WRN-28-10", "net": "wrn-16-1"}, 0, values, 1)])
    )
    assert wrn.axes[0].get_title() == "WRN-16-1"
    settings = {"variant": "groups of 512", "net": "vgg-16conv", "group_size": 64}
    groups = EXPERIMENTS["iternorm-vgg-group"].draw(Results([Run(settings, 0, values, 1)]))
    assert groups.legends[0].get_texts()[0].get_text() == "groups of 64"


def make_training_result(epochs, tested):
    tests = {"test": {"accuracy": 0.5}, "validation": {"accuracy": 0.25}}
    return TrainingResult(
        {},
        {},
        1,
        [Epoch(i, i, 0.1, {"loss": 1.0, "accuracy": 0.75}, tests if i in tested else {}) for i in range(1, epochs + 1)],
    )


def test_values():
    config = Train(epochs=5, test_every=2, validation_images=10)
    whole = _collect_values(make_training_result(5, {2, 4, 5}), config)
    assert whole["train_error"] == [25.0] * 5
    assert whole["test_error"] == [50.0] * 3
    assert whole["held_out_error"] == 75.0
    diverged = _collect_values(make_training_result(3, {2}), config)
    assert diverged["train_error"] == [25.0] * 3 + [math.inf] * 2
    assert diverged["test_error"] == [50.0] + [math.inf] * 2
    assert diverged["held_out_error"] == math.inf
    assert "held_out_error" not in _collect_values(make_training_result(5, {5}), Train(epochs=5, test_every=5))


def test_a_run_tests_on_held_out_images(experiment):
    settings = experiment.plan(experiment.scales["default"])[-1]
    values = run({**settings, "batch_size": 50}, Context(100))
    assert len(values["train_error"]) == len(values["test_error"]) == 2
    assert 0 <= values["held_out_error"] <= 100


def test_group_sizes_are_judged_by_the_spread_of_seeds():
    """Errors may differ by as much as two seeds of one size do; the text names the group sizes that ran."""
    claim = EXPERIMENTS["iternorm-vgg-group"].claims[1]

    def make_results(error_of_32):
        return Results(
            Run({"variant": f"groups of {size}", "group_size": size // 8}, seed, {"test_error": [error + seed]}, 1.0)
            for size, error in ((512, 20.0), (64, 20.5), (32, error_of_32))
            for seed in range(5)
        )

    near = judge_one(claim.judge(make_results(19.0)), MIN_SEEDS)
    assert near.verdict == "held"
    assert near.ours.startswith("groups of 8 22.5 ± 1.6, groups of 64 22 ± 1.6")
    assert judge_one(claim.judge(make_results(27.0)), MIN_SEEDS).verdict == "not held"
