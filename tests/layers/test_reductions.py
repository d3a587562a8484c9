"""Special cases in which a method equals another one, and properties of its output."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import whitenorm
from tests.helpers.cases import MIX, SOLVERS, assert_close, randomise
from whitenorm.functional import whiten

FLOAT64 = torch.float64


def same_gradients(layer, function, x):
    """The output and the input gradient of both."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = layer(a), function(b)
    assert_close(y, expected, FLOAT64, "output")
    grad = torch.randn_like(y)
    y.backward(grad)
    expected.backward(grad)
    assert_close(a.grad, b.grad, FLOAT64, "gradient")


@pytest.mark.parametrize("shape", [(9, 6), (4, 6, 5), (4, 6, 3, 5)], ids=str)
@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
def test_groups_of_one_are_batch_norm(solver, shape):
    layer = whitenorm.BatchWhitening(6, 1, solver, dtype=FLOAT64, population="covariance")
    norm = torch.nn.BatchNorm1d(6, dtype=FLOAT64) if len(shape) < 4 else torch.nn.BatchNorm2d(6, dtype=FLOAT64)
    for module in (layer, norm):
        with torch.no_grad():
            module.weight.copy_(torch.arange(1, 7))
            module.bias.copy_(torch.arange(6))
    x = torch.randn(shape, dtype=FLOAT64) * 3 + 2
    same_gradients(layer, lambda x: F.batch_norm(x, None, None, norm.weight, norm.bias, True), x)
    norm(x)
    values = x.numel() // 6
    assert_close(layer.running_mean, norm.running_mean, FLOAT64)
    # BatchNorm's running variance is the unbiased one, the papers' covariance the biased one.
    unbiased = (layer.running_cov.flatten() - 0.9) * values / (values - 1) + 0.9
    assert_close(unbiased, norm.running_var, FLOAT64)


def test_iternorm_and_dbn_of_groups_of_one_are_batch_norm():
    x = torch.randn(4, 6, 3, 5, dtype=FLOAT64)
    for layer in (whitenorm.IterNorm(6, 1, eps=1e-5), whitenorm.DecorrelatedBatchNorm(6, 1, eps=1e-5)):
        same_gradients(layer.double(), lambda x: F.batch_norm(x, None, None, training=True), x)


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 5), (3, 6, 4, 5), (3, 6, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
def test_one_group_is_group_norm(solver, shape):
    layer = randomise(whitenorm.GroupWhitening(1, 6, solver, dtype=FLOAT64))
    x = torch.randn(shape, dtype=FLOAT64)
    same_gradients(layer, lambda x: F.group_norm(x, 1, layer.weight, layer.bias), x)


@pytest.mark.parametrize("normalized_shape", [12, (12,), (3, 4)], ids=str)
def test_one_group_is_layer_norm(normalized_shape):
    layer = randomise(whitenorm.LayerWhitening(normalized_shape, 1, dtype=FLOAT64))
    x = torch.randn(5, 7, *layer.normalized_shape, dtype=FLOAT64)
    same_gradients(layer, lambda x: F.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias), x)


def test_instance_whitening_of_groups_of_one_is_instance_norm():
    x = torch.randn(3, 6, 4, 5, dtype=FLOAT64)
    same_gradients(whitenorm.InstanceWhitening(6, 1, dtype=FLOAT64), lambda x: F.instance_norm(x), x)


@pytest.mark.parametrize("solver", ["newton", "zca"])
@pytest.mark.parametrize("statistic", MIX)
def test_switched_to_one_statistic_is_that_method(statistic, solver):
    layer = whitenorm.SwitchableWhitening(6, 3, MIX, solver=solver, dtype=FLOAT64)
    with torch.no_grad():
        layer.mean_logits.fill_(-1e9)[MIX.index(statistic)] = 0
        layer.cov_logits.copy_(layer.mean_logits)
    # With a diagonal covariance, Newton's five steps do not reach what the standardising methods divide by.
    method = {
        "bw": whitenorm.BatchWhitening(6, 3, solver, dtype=FLOAT64),
        "iw": whitenorm.InstanceWhitening(6, 3, solver, dtype=FLOAT64),
        "bn": lambda x: F.batch_norm(x, None, None, training=True),
        "in": lambda x: F.instance_norm(x),
        "ln": lambda x: F.group_norm(x, 1),
    }[statistic]
    if solver == "newton" and statistic in ("bn", "in", "ln"):
        layer.solver = whitenorm.solvers.Newton(steps=30)
    same_gradients(layer, method, torch.randn(4, 6, 5, 5, dtype=FLOAT64))


def test_the_five_weights_are_five_and_sum_to_one():
    layer = randomise(whitenorm.SwitchableWhitening(6, 3, MIX))
    mixing = layer.mixing()
    assert list(mixing) == list(MIX)
    for i in range(2):
        assert sum(weights[i] for weights in mixing.values()) == pytest.approx(1, abs=1e-5)
        assert len({weights[i] for weights in mixing.values()}) == 5


def test_tied_weights_are_one_parameter():
    layer = whitenorm.SwitchableWhitening(6, 3, tie_weights=True)
    assert "cov_logits" not in dict(layer.named_parameters())
    assert all(mean == cov for mean, cov in layer.mixing().values())


def covariance(y):
    """Return mean and variance of each channel."""
    columns = y.movedim(1, 0).flatten(1)
    centred = columns - columns.mean(1, keepdim=True)
    return centred @ centred.T / columns.shape[1]


@pytest.mark.parametrize("solver", ["zca", "pca", "cholesky", "minimax", whitenorm.solvers.Newton(30)], ids=str)
def test_exact_solvers_whiten_each_group(solver):
    torch.manual_seed(0)
    x = (torch.randn(8, 5, 5, 6, dtype=FLOAT64) @ torch.randn(6, 6, dtype=FLOAT64) + 3).movedim(-1, 1)
    y = whitenorm.BatchWhitening(6, 3, solver, eps=1e-10, dtype=FLOAT64)(x)
    assert y.mean((0, 2, 3)).abs().max() < 1e-9
    for start in (0, 3):
        assert (covariance(y[:, start : start + 3]) - torch.eye(3)).abs().max() < 1e-5


def test_iternorm_is_approximate_by_design():
    """More steps come nearer to white, and none stretches a direction beyond one."""
    torch.manual_seed(0)
    x = torch.randn(500, 8, dtype=FLOAT64) * torch.logspace(0, 1.5, 8)
    errors = []
    for steps in (1, 3, 5, 7, 9):
        values = torch.linalg.eigvalsh(covariance(whitenorm.IterNorm(8, None, steps, dtype=FLOAT64)(x)))
        assert values.max() <= 1 + 1e-6
        errors.append((values - 1).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[2] > 0.1


def test_group_whitening_whitens_every_sample():
    torch.manual_seed(0)
    y = whitenorm.GroupWhitening(4, 12, "zca", eps=1e-10, dtype=FLOAT64)(torch.randn(3, 12, 5, 5, dtype=FLOAT64))
    groups = y.reshape(3, 4, -1)
    assert groups.sum(-1).abs().max() < 1e-9
    assert (groups @ groups.mT / groups.shape[-1] - torch.eye(4)).abs().max() < 1e-5


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_whiten_is_batch_whitening_of_a_matrix(solver):
    x = torch.randn(20, 6, dtype=FLOAT64)
    layer = whitenorm.BatchWhitening(6, 3, solver, affine=False, dtype=FLOAT64)
    assert_close(whiten(x, group_size=3, solver=solver), layer(x), FLOAT64)


@pytest.mark.parametrize("correction", [0, 1, 3])
@pytest.mark.parametrize("shrinkage", [True, False])
def test_whiten_with_the_conventions_of_w_mse(correction, shrinkage):
    """Unbiased covariance, shrunk towards I, by Cholesky: spelled out."""
    x = torch.randn(13, 6, dtype=FLOAT64, requires_grad=True)
    eps = 0.2
    cov = (1 - eps if shrinkage else 1) * torch.cov(x.T, correction=correction) + eps * torch.eye(6)
    expected = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(cov)).T
    actual = whiten(x, solver="cholesky", eps=eps, correction=correction, shrinkage=shrinkage)
    assert_close(actual, expected, FLOAT64)
    grad = torch.randn_like(expected)
    (a,) = torch.autograd.grad(actual, x, grad)
    (b,) = torch.autograd.grad(expected, x, grad)
    assert_close(a, b, FLOAT64)


def test_group_size_beyond_the_channels_means_all():
    assert whitenorm.IterNorm(32).group_size == 32
    assert whitenorm.IterNorm(128).group_size == 64
    assert whitenorm.DecorrelatedBatchNorm(8).group_size == 8
