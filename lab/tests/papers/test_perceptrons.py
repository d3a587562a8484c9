"""The experiments with perceptrons: norms, runs, comparisons, and the claims of some of them."""

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

import whitenorm
from lab.tests.helpers.image_sets import write_root
from lab.tests.helpers.judging import get_verdict, judge_one
from whitenorm.solvers import PCA, ZCA, Newton
from whitenorm_lab.claims.experiment import Context
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.papers.gw import batch_group as gw_batch_group
from whitenorm_lab.papers.gw import capacity as gw_capacity
from whitenorm_lab.papers.gw import conditioning as gw_conditioning
from whitenorm_lab.papers.shared.perceptrons import (
    build_norm,
    expect_lower,
    load_mnist,
    lower_at_best_other_level,
    run,
    select_best_lr,
)
from whitenorm_lab.side_by_side import Curves


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    return Context(0, write_root(tmp_path_factory.mktemp("data")))


def make_results(errors):
    """Make runs of three seeds for each (norm, lr), around these errors."""
    return Results(
        Run({"norm": name, "lr": lr}, seed, {"final_loss": error, "final_error": error + 0.1 * seed}, 0.0)
        for (name, lr), error in errors.items()
        for seed in range(3)
    )


@pytest.mark.parametrize(
    ("settings", "kind", "attributes"),
    [
        ({"norm": "plain"}, nn.Identity, {}),
        ({"norm": "BN", "eps": 1e-4}, nn.BatchNorm1d, {"eps": 1e-4}),
        ({"norm": "GN", "groups": 4}, nn.GroupNorm, {"num_groups": 4}),
        ({"norm": "GW", "groups": 4}, whitenorm.GroupWhitening, {"num_groups": 4}),
        ({"norm": "IterNorm", "T": 7}, whitenorm.IterNorm, {"group_size": 128, "solver": Newton(7)}),
        ({"norm": "DBN", "eps": 1e-3}, whitenorm.BatchWhitening, {"group_size": 128, "solver": ZCA()}),
        ({"norm": "DBN-PCA"}, whitenorm.BatchWhitening, {"solver": PCA()}),
        ({"norm": "BW-C16", "group_size": 16}, whitenorm.BatchWhitening, {"group_size": 16}),
    ],
)
def test_settings_name_the_norm(settings, kind, attributes):
    layer = build_norm(settings, 128)
    assert type(layer) is kind
    for name, value in attributes.items():
        assert getattr(layer, name) == value


def test_an_unknown_norm_is_an_error():
    with pytest.raises(ValueError, match="'XN'"):
        build_norm({"norm": "XN"}, 8)


def test_the_mean_of_the_training_images_is_subtracted_from_both_splits(context):
    train, test = load_mnist(context, 100, 20)
    assert train.images.mean(0).abs().max() < 1e-6
    mean = context.load("mnist").train.images[:100].float().div(255).mean(0)
    assert torch.equal(test.images, context.load("mnist").test.images[:20].float().div(255) - mean)


def test_a_run_has_curves_and_final_values(context):
    settings = {"norm": "BN", "hidden": 2, "width": 8, "images": 64, "lr": 0.1, "steps": 6, "points": 3}
    values = run({**settings, "batch_size": 16, "test_images": 20}, context)
    assert values["step"] == [2, 4, 6]
    for name in ("loss", "error", "test"):
        assert values[f"final_{name}"] == values[name][-1]
    assert not {"test", "final_test"} & run(settings, context).keys()


def test_methods_are_compared_at_their_own_best_rates():
    results = make_results({("A", 0.1): 5.0, ("A", 1.0): 1.0, ("B", 0.1): 2.0, ("B", 1.0): 9.0})
    assert select_best_lr(results, norm="B").levels("lr") == [0.1]
    assert get_verdict(expect_lower("final_error", {"norm": "A"}, {"norm": "B"})(results)) == "held"
    assert get_verdict(expect_lower("final_error", {"norm": "B"}, {"norm": "A"})(results)) == "not held"


def test_a_level_is_compared_with_the_best_other_level():
    results = make_results({("A", 1): 5.0, ("A", 2): 1.0, ("A", 3): 3.0})
    first = judge_one(lower_at_best_other_level(results, "lr", 1, "final_error", "error"))
    assert first.verdict == "held"
    assert first.ours.startswith("error, lr 2 1.1 ")
    assert get_verdict(lower_at_best_other_level(results, "lr", 2, "final_error", "error")) == "not held"


def test_every_seed_has_its_own_random_labels(context, monkeypatch):
    seen = []

    def record_labels(models, norms, lrs, trains, **options):
        seen.extend(train.labels for train in trains)
        return [Curves([], [], []) for _ in trains]

    monkeypatch.setattr(gw_capacity, "fit_side_by_side", record_labels)
    settings = {"hidden": 0, "width": 10, "groups": [], "lrs": [], "images": 100, "epochs": 1, "points": 1}
    gw_capacity.run_seeds(settings, [Context(seed, context.data_root) for seed in (0, 0, 1)])
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], context.load("mnist").train.labels[:100])


def make_side_by_side_results(errors):
    """Make runs of one-layer networks trained side by side, with three seeds, around these errors."""
    return Results(
        Run(
            {"hidden": 1, "width": 32, "lrs": [0.1, 0.5]},
            seed,
            {
                "nets": [
                    {"norm": norm, "groups": g, "lr": lr, "loss": [], "error": [90.0, error + 0.1 * seed]}
                    for (norm, g, lr), error in errors.items()
                ]
            },
            0.0,
        )
        for seed in range(3)
    )


def test_networks_trained_side_by_side_are_compared_at_their_best_rates():
    results = gw_capacity._select_best_rates(
        make_side_by_side_results({("GN", 2, 0.1): 5.0, ("GN", 2, 0.5): 1.0, ("GN", 4, 0.1): 3.0}), 1, "GN"
    )
    assert results.values("final_error", groups=2) == pytest.approx([1.0, 1.1, 1.2])
    assert results.values("final_error", groups=4) == pytest.approx([3.0, 3.1, 3.2])
    assert results.where(groups=2).levels("lr") == [0.5]


def test_the_more_sensitive_norm_rises_more_from_its_fewest_groups():
    # In groups of 8 and of 4 channels, of 32; not in those of 2.
    errors = {("GN", 2): 5.0, ("GN", 4): 6.0, ("GN", 8): 7.0, ("GN", 16): 90.0}
    errors |= {("GW", 2): 1.0, ("GW", 4): 3.0, ("GW", 8): 5.0, ("GW", 16): 9.0}
    results = make_side_by_side_results({(norm, g, 0.1): error for (norm, g), error in errors.items()})
    assert get_verdict(gw_capacity._judge_sensitivity(1)(results)) == "held"
    results = make_side_by_side_results(
        {(norm, g, 0.1): error for (norm, g), error in (errors | {("GW", 8): 2.0}).items()}
    )
    assert get_verdict(gw_capacity._judge_sensitivity(1)(results)) == "not held"


def test_recalibration_changes_tests_and_not_training(context):
    settings = {"norm": "DBN", "eps": 1e-3, "hidden": 1, "width": 8, "images": 64, "lr": 0.5, "steps": 4, "points": 2}
    settings["test_images"] = 50
    values = []
    for recalibrate in (False, True):
        torch.manual_seed(0)
        values.append(run({**settings, "recalibrate": recalibrate}, context))
    without, recalibrated = values
    assert recalibrated["loss"] == without["loss"]
    assert recalibrated["test"] != without["test"]
    assert "final_test" in run({**settings, "norm": "plain", "recalibrate": True}, context)


@pytest.mark.parametrize("method", ["base", "BN", "GW"])
def test_readings_of_a_condition_number(method):
    settings = {"layers": 2, "features": 16, "samples": 200, "method": method, "groups": 1}
    torch.manual_seed(0)
    values = gw_conditioning.run(settings, Context(0))
    assert set(values) == {f"{reading}_{p}" for reading in gw_conditioning._READINGS for p in (90, 80)}
    for place in ("after", "before"):
        same = values[f"{place}_moments_90"] == pytest.approx(values[f"{place}_covariance_90"])
        # With BN no mean is left to count.
        assert same == (method == "BN")


def test_epochs_are_the_same_for_all_batch_sizes():
    scale = gw_batch_group.EXPERIMENT.scales["default"]
    for settings in gw_batch_group.plan(scale):
        assert settings["steps"] == scale["epochs"] * (scale["images"] // settings["batch_size"])
