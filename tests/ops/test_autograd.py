"""Autograd's other ways: batches of gradients at once, and hooks that pack saved tensors away."""

import pytest
import torch
from torch.autograd.functional import hessian, jacobian
from torch.autograd.graph import save_on_cpu

import whitenorm
from tests.helpers.cases import (
    CHANNEL_LAYERS,
    TOKEN_LAYERS,
    assert_close,
    channel_layers,
    channels_last,
    randomise,
    token_layers,
)
from whitenorm.diagnostics import inspect
from whitenorm.ops.torch import passes
from whitenorm.solvers import Newton, inverse_sqrt, products


def function_of_batches(cov):
    """A user's solver."""
    return torch.linalg.inv(torch.linalg.cholesky(cov))


def make(name, solver="newton", training=True):
    torch.manual_seed(0)
    layers, shape = (token_layers, (3, 8)) if name in TOKEN_LAYERS else (channel_layers, (3, 6, 2, 2))
    layer = layers(shape[1], solver, eps=1e-2, dtype=torch.float64)[name]
    return randomise(layer).train(training), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CHANNEL_LAYERS + TOKEN_LAYERS)
def test_batched_gradients_of_every_layer(name, training):
    layer, x = make(name, training=training)
    y = layer(x.requires_grad_())
    inputs = [x, *layer.parameters()]
    grads = torch.randn(2, *y.shape, dtype=torch.float64)
    together = torch.autograd.grad(y, inputs, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        for both, one in zip(together, torch.autograd.grad(y, inputs, grad, retain_graph=True), strict=True):
            assert_close(both[i], one, torch.float64)


@pytest.mark.parametrize("name", ["bw", "sw5", "gw"])
@pytest.mark.parametrize("solver", ["newton", Newton(0), "zca", "pca", "cholesky", "minimax", function_of_batches])
def test_vectorized_derivatives_of_every_solver(name, solver):
    layer, x = make(name, solver)
    x = x[:2, ..., :1] if name == "bw" else x[:1]
    assert_close(jacobian(layer, x, vectorize=True), jacobian(layer, x), torch.float64)

    def loss(x):
        return layer(x).pow(3).sum()

    assert_close(hessian(loss, x, vectorize=True), hessian(loss, x), torch.float64)


@pytest.mark.parametrize("name", ["bw", "bw-sigma", "iw", "gw", "lw"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batched_gradients_of_gradients(name, training):
    """A graph of the batch of gradients itself."""
    layer, x = make(name, training=training)
    y = layer(x.requires_grad_())
    grads = torch.randn(2, *y.shape, dtype=torch.float64, requires_grad=True)
    (together,) = torch.autograd.grad(y, x, grads, is_grads_batched=True, create_graph=True)
    one = torch.stack([torch.autograd.grad(y, x, grad, create_graph=True)[0] for grad in grads])
    assert_close(together, one, torch.float64)
    losses = together.pow(2).sum(), one.pow(2).sum()
    second = [torch.autograd.grad(loss, [x, grads], materialize_grads=True) for loss in losses]
    for actual, expected in zip(*second, strict=True):
        assert_close(actual, expected, torch.float64)


@pytest.mark.parametrize("name", ["bw", "sw", "iw", "gw"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batched_gradients_of_large_inputs(name, training, monkeypatch):
    """Which are otherwise taken block by block, and many matrices in chunks."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", 500)
    monkeypatch.setattr(passes, "BUFFER_BYTES", 1)
    monkeypatch.setattr(products, "_CHUNK_BYTES", 500)
    monkeypatch.setattr(products, "_BUFFER_BYTES", 1)
    layer, x = make(name, training=training)
    for layout in (torch.clone, channels_last):
        assert_close(jacobian(layer, layout(x), vectorize=True), jacobian(layer, layout(x)), torch.float64)


@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
def test_batched_gradients_of_matrices(solver):
    cov = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double() + 0.1
    vectorized = jacobian(lambda cov: inverse_sqrt(cov, solver), cov, vectorize=True)
    assert_close(vectorized, jacobian(lambda cov: inverse_sqrt(cov, solver), cov), torch.float64)


def gradients(layer, x, second):
    x = x.clone().requires_grad_()
    inputs = [x, *layer.parameters()]
    results = torch.autograd.grad(layer(x).pow(3).sum(), inputs, create_graph=second)
    if not second:
        return results
    return torch.autograd.grad(sum(result.pow(2).sum() for result in results), inputs, materialize_grads=True)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax", function_of_batches])
@pytest.mark.parametrize("name", ["bw", "sw-tied", "gw"])
def test_gradients_under_saved_tensor_hooks(name, solver, training, second):
    layer, x = make(name, solver, training)
    expected = gradients(layer, x, second)
    with save_on_cpu():
        actual = gradients(layer, x, second)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def test_a_function_as_solver_is_inspected():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), whitenorm.BatchWhitening(4, solver=function_of_batches))
    (report,) = inspect(model, torch.randn(16, 4))
    assert report.condition_after < report.condition_before


def test_a_solver_that_ignores_the_covariance():
    layer = whitenorm.BatchWhitening(4, solver=lambda cov: torch.eye(4).expand_as(cov))
    x = torch.randn(8, 4, requires_grad=True)
    grad = torch.randn(8, 4)
    layer(x).backward(grad)
    assert torch.allclose(x.grad, grad - grad.mean(0), atol=1e-6)
