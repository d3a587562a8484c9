"""Drift: the distance of a batch from a norm's population."""

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm.diagnostics import inspect


def count_one_update(model):
    """Count one update of the running statistics without changing their mean of zero and variance of one."""
    for module in model.modules():
        if getattr(module, "num_batches_tracked", None) is not None:
            module.num_batches_tracked += 1
    return model


def test_drift():
    model = count_one_update(nn.Sequential(nn.BatchNorm1d(4)))
    x = torch.randn(500, 4) + 10
    (row,) = inspect(model, x)
    # The batch has mean ten, the population mean zero and variance one.
    assert row.drift == pytest.approx(10, rel=0.05)
    assert "recalibrate_" in row.advice[0]
    whitenorm.recalibrate_(model, [x], progress=False)
    assert inspect(model, x)[0].drift < 0.5


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), whitenorm.IterNorm(4), whitenorm.SwitchableWhitening(4)], ids=str)
def test_initial_statistics_have_no_drift(layer):
    x = torch.randn(64, 4, 6) + 10
    (row,) = inspect(nn.Sequential(layer), x)
    assert row.drift is None
    assert row.advice == []
    # Old checkpoints have statistics, but no count of batches.
    layer.running_mean += 1
    assert inspect(nn.Sequential(layer), x)[0].drift > 1


@pytest.mark.parametrize("solver", ["zca", "newton"])
@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_batch_of_the_population_has_no_drift(population, solver):
    """Also where Newton's few steps leave much of an ill-conditioned batch unwhitened."""
    model = nn.Sequential(whitenorm.BatchWhitening(4, solver=solver, population=population, eps=1e-8))
    x = torch.randn(400, 4) @ torch.randn(4, 4) * torch.tensor([1, 3, 10, 30]) + 3
    whitenorm.recalibrate_(model, [x], progress=False)
    assert inspect(model.eval(), x)[0].drift < 1e-2


def test_drift_of_a_wide_layer_uses_its_first_channels():
    (row,) = inspect(count_one_update(nn.Sequential(nn.BatchNorm1d(3000))), torch.randn(8, 3000) + 3)
    assert row.drift == pytest.approx(3, rel=0.1)
    assert row.disturbance is None
