"""Population statistics: the papers' averages, PyTorch's momentum, and inference with them."""

import pytest
import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import assert_close, twin

FLOAT64 = torch.float64


def batches(count=4):
    torch.manual_seed(0)
    return [torch.randn(5, 6, 4, 3, dtype=FLOAT64) * (i + 1) + i for i in range(count)]


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0, 0.0, None])
@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_batch_methods(population, momentum):
    """DBN, algorithm 1, lines 10 and 11, and the same for the covariance; None is the plain average."""
    layer = whitenorm.BatchWhitening(6, 3, momentum=momentum, population=population, dtype=FLOAT64)
    naive = twin(layer)
    mean = torch.zeros(6, dtype=FLOAT64)
    matrix = torch.eye(3, dtype=FLOAT64).repeat(2, 1, 1)
    for i, x in enumerate(batches()):
        layer(x)
        _, statistics = reference.batch_whitening(x, naive)
        weight = 1 / (i + 1) if momentum is None else momentum
        new = torch.stack([entry[2 if population == "whitening" else 1] for entry in statistics])
        mean = (1 - weight) * mean + weight * torch.cat([entry[0] for entry in statistics])
        matrix = (1 - weight) * matrix + weight * new
    assert layer.num_batches_tracked == 4
    assert_close(layer.running_mean, mean, FLOAT64)
    assert_close(layer.running_whitening if population == "whitening" else layer.running_cov, matrix, FLOAT64)


@pytest.mark.parametrize("statistics", [("bw", "iw"), ("iw", "bn"), ("bw", "iw", "bn", "in", "ln")], ids=str)
def test_switchable_tracks_the_batch_statistics(statistics):
    layer = whitenorm.SwitchableWhitening(6, 3, statistics, momentum=0.3, dtype=FLOAT64)
    alone = whitenorm.BatchWhitening(6, 3, momentum=0.3, population="covariance", dtype=FLOAT64)
    for x in batches():
        layer(x)
        alone(x)
    assert_close(layer.running_mean, alone.running_mean, FLOAT64)
    assert_close(layer.running_cov, alone.running_cov, FLOAT64)


def test_switchable_without_batch_statistics_keeps_none():
    layer = whitenorm.SwitchableWhitening(6, 3, ("iw", "in"))
    assert not list(layer.buffers())
    x = torch.randn(4, 6, 5)
    assert torch.equal(layer(x), layer.eval()(x))


@pytest.mark.parametrize("make", [whitenorm.IterNorm, whitenorm.DecorrelatedBatchNorm, whitenorm.SwitchableWhitening])
def test_inference_changes_nothing(make):
    layer = make(6)
    layer(torch.randn(4, 6, 5))
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.eval()(torch.randn(4, 6, 5))
    assert all(torch.equal(before[name], buffer) for name, buffer in layer.named_buffers())


@pytest.mark.parametrize("make", [whitenorm.IterNorm, whitenorm.DecorrelatedBatchNorm, whitenorm.SwitchableWhitening])
def test_training_without_grad_still_records(make):
    layer = make(6)
    with torch.no_grad():
        layer(torch.randn(4, 6, 5) + 7)
    assert layer.num_batches_tracked == 1
    assert (layer.running_mean > 0.5).all()


def test_reset():
    layer = whitenorm.IterNorm(6)
    layer(torch.randn(4, 6, 5) + 7)
    layer.reset_running_stats()
    assert (layer.running_mean == 0).all()
    assert torch.equal(layer.running_whitening, torch.eye(6)[None])
    assert layer.num_batches_tracked == 0


def test_tracking_switched_off_afterwards_uses_the_batch():
    layer = whitenorm.IterNorm(6)
    layer.track_running_stats = False
    x = torch.randn(4, 6, 5) + 3
    assert torch.equal(layer.eval()(x), layer.train()(x))
    assert layer.num_batches_tracked == 0
