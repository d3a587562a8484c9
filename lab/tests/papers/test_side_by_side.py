"""Nets trained side by side, against the same nets one at a time."""

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

NORMS = [None, *(partial(one, num_groups=g) for one in (F.group_norm, group_whitening) for g in (1, 2, 3))]
LRS = [0.05, 0.5]
SHAPE = (1, 3, 4)


SEEDS = [3, 4]


@pytest.fixture
def trains():
    """A set for each seed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(50, *SHAPE, generator=generator, dtype=torch.float64)
    return [Split(images, torch.randint(6, (50,), generator=generator)) for _ in SEEDS]


def perceptron(hidden, seed, norm=lambda width: nn.Identity()):
    torch.manual_seed(seed)
    return mlp(6, SHAPE, hidden=hidden, norm=norm).double()


def perceptrons(hidden):
    return [perceptron(hidden, seed) for seed in SEEDS]


def layer(norm, width):
    """As a module of its own."""
    if norm is None:
        return nn.Identity()
    groups = norm.keywords["num_groups"]
    kinds = {F.group_norm: nn.GroupNorm, group_whitening: whitenorm.GroupWhitening}
    return kinds[norm.func](groups, width).double()


def alone(hidden, norm, seed):
    model = perceptron(hidden, seed, lambda width: layer(norm, width))
    return model if hidden else model.append(layer(norm, 6))


@pytest.mark.parametrize("hidden", [[], [12], [12, 12, 12]], ids=["linear", "one layer", "three layers"])
def test_every_net_is_trained_as_it_would_be_alone(trains, hidden):
    options = {"steps": 30, "batch_size": 8, "points": 3}
    found = fit_side_by_side(perceptrons(hidden), NORMS, LRS, trains, seeds=SEEDS, **options)
    settings = [(norm, lr) for norm in NORMS for lr in LRS]
    for curves, train, seed in zip(found, trains, SEEDS, strict=True):
        assert len(curves.loss) == len(curves.error) == len(settings)
        for loss, error, (norm, lr) in zip(curves.loss, curves.error, settings, strict=True):
            one = fit(alone(hidden, norm, seed), train, lr=lr, seed=seed, **options)
            assert curves.step == one["step"]
            assert loss == pytest.approx(one["loss"], rel=1e-6)
            assert error == pytest.approx(one["error"], rel=1e-6)
    ends = {loss[-1] for curves in found for loss in curves.loss}
    assert len(ends) > len(SEEDS) * len(settings) / 2, "the nets differ"


def test_a_net_that_diverges_does_not_touch_the_others(trains):
    options = {"seeds": SEEDS, "steps": 30, "batch_size": 8, "points": 6}
    alone = fit_side_by_side(perceptrons([12]), NORMS, [0.1], trains, **options)
    with_lost = fit_side_by_side(perceptrons([12]), NORMS, [0.1, 1e30], trains, **options)
    for one, beside in zip(alone, with_lost, strict=True):
        torch.testing.assert_close(torch.tensor(beside.loss[::2]), torch.tensor(one.loss))
        lost = beside.loss[1]
        assert lost[-1] == math.inf
        assert [math.isfinite(value) for value in lost] == sorted(map(math.isfinite, lost), reverse=True)


def test_nets_without_norm_have_no_scale_to_learn():
    nets = SideBySide(perceptrons([12]), [None, NORMS[1]], copies=2)
    for parameter, rate in nets.rates(LRS):
        learnt = parameter.dim() == 3 or any(parameter is bias for bias in nets.biases)
        assert rate.tolist() == pytest.approx((LRS * 2 if learnt else [0, 0, *LRS]) * len(SEEDS))
