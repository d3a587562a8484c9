"""The solve and its backward: running statistics, numbers of steps, and difficult covariances."""

import pytest
import torch

from tests.triton.interpreted.kernel_reference import assert_close, method, moments, newton, pool, vector, view
from whitenorm.ops.triton.solve import solve
from whitenorm.ops.triton.solve_backward import solve_backward
from whitenorm.ops.types import MapGradients, Mixing, Moments, Running, Statistics

SHAPE = (3, 2, 5, 1, 7)


def compute_statistics(shape=SHAPE, number=None):
    sample, batch = (moments(view(shape), pooled) for pooled in (False, True))
    return Statistics(sample, batch if number is None else batch._replace(num_values=number))


def make_running(kind, momentum, shape=SHAPE):
    _, groups, features, *_ = shape
    matrix = vector((groups, features, features), 5)
    return Running(vector(groups * features, 4), matrix, kind, momentum, torch.tensor(3))


def clone(statistics):
    return Running(*(part.clone() if isinstance(part, torch.Tensor) else part for part in statistics))


@pytest.mark.parametrize(
    ("kind", "momentum", "number"),
    [
        ("whitening", 0.1, None),
        ("whitening", torch.tensor(0.25), torch.tensor(84.0)),
        ("covariance", 1.0, None),
        ("covariance", torch.tensor(0.7, dtype=torch.float64), torch.tensor(84.0, dtype=torch.float64)),
    ],
)
@pytest.mark.parametrize("mixed", [False, True], ids=["bw", "mixed"])
def test_running_statistics(kind, momentum, number, mixed):
    given, statistics = compute_statistics(number=number), make_running(kind, momentum)
    old = clone(statistics)
    mixing = Mixing(vector(3, 2), vector(3, 3)) if mixed else None
    how = method(("bw", "ln", "in") if mixed else ("bw",))
    solved = solve(given, how, mixing, statistics)
    new = given.batch.cov if mixed or kind == "covariance" else solved.whitening
    weight = float(momentum)
    assert_close(statistics.mean, old.mean.lerp(given.batch.mean.flatten(), weight).double(), 1e-6)
    assert_close(statistics.matrix, old.matrix.lerp(new[0], weight).double(), 1e-6)
    assert statistics.counter == 4


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_fewer_than_two_values_update_nothing(number):
    statistics = make_running("whitening", 0.5)
    old = clone(statistics)
    solve(compute_statistics(number=torch.tensor(number)), method(("bw",)), None, statistics)
    assert all(torch.equal(new, before) for new, before in zip(statistics[:2], old[:2], strict=True))
    assert statistics.counter == 3


def test_some_running_statistics():
    """Each of the running statistics may be None."""
    statistics = make_running("whitening", 0.5)._replace(matrix=None, counter=None)
    old = clone(statistics)
    solve(compute_statistics(), method(("bw",)), None, statistics)
    assert not torch.equal(statistics.mean, old.mean)


@pytest.mark.parametrize("kind", ["whitening", "covariance"])
def test_running_statistics_of_other_strides(kind):
    dense = make_running(kind, 0.25)
    strided = clone(dense)._replace(matrix=torch.zeros(2, 5, 10)[..., ::2].copy_(dense.matrix))
    assert not strided.matrix.is_contiguous()
    for statistics in (dense, strided):
        solve(compute_statistics(), method(("bw",)), None, statistics)
    assert torch.allclose(strided.mean, dense.mean)
    assert torch.allclose(strided.matrix, dense.matrix)
    assert strided.counter == dense.counter == 4


@pytest.mark.parametrize(
    ("features", "steps"), [(1, 5), (3, 0), (3, 1), (16, 5), (16, 2), (17, 5), (32, 1), (48, 5), (64, 0), (64, 5)]
)
def test_steps_and_sizes(features, steps):
    shape = (1, 1, features, 1, 30)
    how = method(("bw",), eps=1e-2, scale=2.0, steps=steps)
    given = Statistics(None, moments(view(shape), True))
    solved = solve(given, how, None, None)
    mean, cov = pool(None, Moments(*(part.double() for part in given.batch[:2]), 1), how, None)
    assert_close(solved.mean, mean, 1e-6, "mean")
    assert_close(solved.cov, cov, 1e-6, "covariance")
    assert_close(solved.whitening, newton(cov, steps), 1e-4, "whitening")
    grads = MapGradients(vector(given.batch.cov.shape, 6), vector(given.batch.mean.shape, 7))
    back = solve_backward(grads, solved, given, how, None, None, None, False)
    cov.requires_grad_()
    (newton(cov, steps) * grads.matrix).sum().backward()
    assert_close(back.batch.matrix, how.scale * (cov.grad + cov.grad.mT) / 2, 1e-4, "gradient of the covariance")
    offset = -(solved.whitening.double() * grads.offset[..., None]).sum(-2)
    assert_close(back.batch.offset, offset, 1e-5, "gradient of the mean")


@pytest.mark.parametrize(
    ("cov", "steps"),
    [
        (torch.zeros(4, 4), 5),
        (torch.diag(torch.tensor([1.0, 1e-3, 1e-6, 0.0])), 20),
        (torch.ones(4, 4), 20),
    ],
)
def test_hard_covariances(cov, steps):
    """The matrices and gradients stay finite."""
    given = Statistics(None, Moments(torch.zeros(1, 1, 4), cov[None, None], 10))
    how = method(("bw",), eps=0.0, steps=steps)
    solved = solve(given, how, None, None)
    assert torch.isfinite(solved.whitening).all()
    grads = MapGradients(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4))
    back = solve_backward(grads, solved, given, how, None, None, None, False)
    assert all(torch.isfinite(part).all() for part in back.batch[:2])


def test_many_matrices_one_after_the_other(monkeypatch):
    monkeypatch.setattr("whitenorm.ops.triton.scratch.MOST_PROGRAMS", 4)
    given = compute_statistics()._replace(batch=None)
    how = method(("iw",))
    solved = solve(given, how, None, None)
    mean, cov = pool(Moments(*(part.double() for part in given.sample[:2]), 1), None, how, None)
    assert_close(solved.whitening, newton(cov), 1e-4)
    assert_close(solved.mean, mean, 1e-6)
    grads = MapGradients(vector(cov.shape, 6), vector(mean.shape, 7))
    back = solve_backward(grads, solved, given, how, vector(mean.shape[1:], 8), None, None, False)
    expected = (grads.matrix.double() * newton(cov)).sum((0, -1)).unsqueeze(-1)
    assert_close(back.weight, expected, 1e-4)
