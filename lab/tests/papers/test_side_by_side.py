"""Nets trained side by side, against the same nets trained one at a time."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

pytest.importorskip("matplotlib")

import whitenorm
from whitenorm.functional import group_whitening
from whitenorm_lab.data import Split
from whitenorm_lab.fitting import fit
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.side_by_side import SideBySide, fit_side_by_side

NORMS = [None, *(partial(norm, num_groups=g) for norm in (F.group_norm, group_whitening) for g in (1, 2, 3))]
LRS = [0.05, 0.5]
SEEDS = [3, 4]
SHAPE = (1, 3, 4)


@pytest.fixture
def trains():
    """A training set for each seed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(50, *SHAPE, generator=generator, dtype=torch.float64)
    return [Split(images, torch.randint(6, (50,), generator=generator)) for _ in SEEDS]


def build_perceptron(hidden, seed, norm=lambda width: nn.Identity()):
    torch.manual_seed(seed)
    return mlp(6, SHAPE, hidden=hidden, norm=norm).double()


def build_perceptrons(hidden):
    return [build_perceptron(hidden, seed) for seed in SEEDS]


def build_norm_layer(norm, width):
    if norm is None:
        return nn.Identity()
    groups = norm.keywords["num_groups"]
    layers = {F.group_norm: nn.GroupNorm, group_whitening: whitenorm.GroupWhitening}
    return layers[norm.func](groups, width).double()


def build_single_net(hidden, norm, seed):
    model = build_perceptron(hidden, seed, lambda width: build_norm_layer(norm, width))
    return model if hidden else model.append(build_norm_layer(norm, 6))


@pytest.mark.parametrize("hidden", [[], [12], [12, 12, 12]], ids=["linear", "one layer", "three layers"])
def test_every_net_is_trained_as_it_would_be_alone(trains, hidden):
    options = {"steps": 30, "batch_size": 8, "points": 3}
    per_seed = fit_side_by_side(build_perceptrons(hidden), NORMS, LRS, trains, seeds=SEEDS, **options)
    settings = [(norm, lr) for norm in NORMS for lr in LRS]
    for curves, train, seed in zip(per_seed, trains, SEEDS, strict=True):
        assert len(curves.loss) == len(curves.error) == len(settings)
        for loss, error, (norm, lr) in zip(curves.loss, curves.error, settings, strict=True):
            alone = fit(build_single_net(hidden, norm, seed), train, lr=lr, seed=seed, **options)
            assert curves.step == alone["step"]
            assert loss == pytest.approx(alone["loss"], rel=1e-6)
            assert error == pytest.approx(alone["error"], rel=1e-6)
    ends = {loss[-1] for curves in per_seed for loss in curves.loss}
    assert len(ends) > len(SEEDS) * len(settings) / 2, "the nets differ"


def test_a_net_that_diverges_does_not_affect_the_others(trains):
    options = {"seeds": SEEDS, "steps": 30, "batch_size": 8, "points": 6}
    without = fit_side_by_side(build_perceptrons([12]), NORMS, [0.1], trains, **options)
    with_diverged = fit_side_by_side(build_perceptrons([12]), NORMS, [0.1, 1e30], trains, **options)
    for alone, beside in zip(without, with_diverged, strict=True):
        torch.testing.assert_close(torch.tensor(beside.loss[::2]), torch.tensor(alone.loss))
        diverged = beside.loss[1]
        assert diverged[-1] == math.inf
        assert [math.isfinite(value) for value in diverged] == sorted(map(math.isfinite, diverged), reverse=True)


def test_nets_without_norm_have_no_scale_to_learn():
    nets = SideBySide(build_perceptrons([12]), [None, NORMS[1]], copies=2)
    for parameter, rate in nets.pair_with_rates(LRS):
        is_linear = parameter.dim() == 3 or any(parameter is bias for bias in nets.biases)
        assert rate.tolist() == pytest.approx((LRS * 2 if is_linear else [0, 0, *LRS]) * len(SEEDS))
