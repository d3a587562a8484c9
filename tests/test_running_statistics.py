"""Population statistics: the papers' averages, PyTorch's momentum, and inference with them."""

import copy

import pytest
import reference
import torch
from cases import assert_close, twin

import whitenorm

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
def test_switchable_keeps_the_batch_part(statistics):
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


class TestCachedMatrix:
    """The matrix of a running covariance is solved once for each state of it."""

    def counted(self, **options):
        calls = []

        def solver(cov):
            calls.append(cov)
            return torch.linalg.inv(torch.linalg.cholesky(cov))

        return whitenorm.BatchWhitening(4, solver=solver, population="covariance", **options), calls

    def test_solved_once(self):
        layer, calls = self.counted()
        layer.eval()
        x = torch.randn(3, 4)
        first = layer(x)
        assert torch.equal(first, layer(x))
        assert len(calls) == 1

    def test_solved_again_after_training_loading_moving_or_writing(self):
        layer, calls = self.counted()
        x = torch.randn(8, 4)

        def infer():
            calls.clear()
            y = layer.eval()(x)
            assert len(calls) == 1
            return y

        infer()
        layer.train()(x)
        trained = infer()
        state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
        with torch.no_grad():
            layer.running_cov.mul_(4)
        assert not torch.allclose(infer(), trained)
        layer.load_state_dict(state)
        assert torch.allclose(infer(), trained)
        layer.double().float()
        assert torch.allclose(infer(), trained)

    def test_solved_again_for_another_eps_or_solver(self):
        layer, _ = self.counted()
        x = torch.randn(3, 4)
        layer.eval()(x)
        for name, value in (("eps", 1.0), ("solver", whitenorm.solvers.Newton(2))):
            setattr(layer, name, value)
            assert torch.equal(layer(x), copy.deepcopy(layer)(x))

    def test_a_write_that_torch_does_not_count_is_seen_after_eval(self):
        layer, _ = self.counted()
        x = torch.randn(3, 4)
        before = layer.eval()(x)
        layer.running_cov.data.mul_(4)
        assert not torch.allclose(layer.eval()(x), before)

    def test_a_covariance_that_asks_for_a_gradient_gets_one(self):
        layer, _ = self.counted()
        cov = (2 * torch.eye(4)[None]).requires_grad_()
        torch.func.functional_call(layer.eval(), {"running_cov": cov}, (torch.randn(3, 4),)).sum().backward()
        assert cov.grad.abs().sum() > 0

    def test_inference_mode_does_not_poison_it(self):
        layer, _ = self.counted()
        layer.eval()
        with torch.inference_mode():
            layer(torch.randn(3, 4))
        x = torch.randn(3, 4, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.isfinite().all()

    def test_it_is_not_copied_or_stored(self):
        layer, _ = self.counted()
        layer.eval()(torch.randn(3, 4))
        assert layer._cached is not None
        assert layer.__getstate__()["_cached"] is None
        assert "_cached" not in layer.state_dict()
