"""Covariance pooling against iSQRT-COV's formula in float64: values, gradients, tools, extreme inputs and errors."""

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close
from whitenorm.functional import covariance_pooling
from whitenorm.solvers import Newton

FLOAT64 = torch.float64
SHAPES = [(3, 5, 31), (2, 6, 5, 7), (2, 4, 3, 3, 2)]


def make_features(shape, dtype=FLOAT64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(shape[1], shape[1], generator=generator, dtype=FLOAT64)
    x = torch.randn(shape, generator=generator, dtype=FLOAT64)
    return (torch.einsum("ij,nj...->ni...", mixing, x) + 1).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("steps", [1, 5, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_papers_formula(shape, steps, dtype, device):
    x = make_features(shape, dtype, device).requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    actual = whitenorm.CovariancePooling(Newton(steps))(x)
    expected = reference.covariance_pooling(exact, lambda cov: reference.root_newton_schulz(cov, steps))
    grad = torch.linspace(-1, 1, expected.numel(), dtype=FLOAT64).view(expected.shape)
    actual.backward(grad.to(actual))
    expected.backward(grad)
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)
    assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)


def test_exact_root():
    """With ZCA, the square of the pooled matrix is the covariance."""
    x = make_features((2, 5, 6, 6))
    y = covariance_pooling(x, 0.1, solver="zca")
    root = torch.zeros(2, 5, 5, dtype=FLOAT64)
    row, column = torch.triu_indices(5, 5)
    root[:, row, column] = root[:, column, row] = y
    expected = torch.stack([torch.cov(sample.flatten(1), correction=0) for sample in x]) + 0.1 * torch.eye(5)
    assert_close(root @ root, expected, FLOAT64)


@pytest.mark.parametrize("solver", ["newton", "zca"])
def test_gradients(solver):
    x = make_features((2, 3, 3, 4)).requires_grad_()
    pool = whitenorm.CovariancePooling(solver, eps=0.1)
    assert torch.autograd.gradcheck(pool, x)
    assert torch.autograd.gradgradcheck(pool, x, atol=1e-4)


@pytest.mark.parametrize("scale", [0, 1e-4, 1, 1e4])
def test_finite_for_any_scale_and_rank(scale):
    x = (scale * torch.randn(2, 16, 3)).requires_grad_()
    y = whitenorm.CovariancePooling()(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_tools():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), whitenorm.CovariancePooling(), nn.Linear(10, 2))
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    assert torch.allclose(torch.fx.symbolic_trace(model)(x), expected, atol=1e-5)
    assert torch.allclose(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected, atol=1e-5)
    assert torch.allclose(torch.export.export(model, (x,)).module()(x), expected, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model[1](x), whitenorm.CovariancePooling()(x))
    assert not model[1].state_dict()
    assert repr(model[1]) == "CovariancePooling(solver=Newton(steps=5), eps=0.0)"


def test_refuses():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        whitenorm.CovariancePooling()(torch.randn(2, 4, 1, 1))
    with pytest.raises(ValueError, match="2D to 5D"):
        whitenorm.CovariancePooling()(torch.randn(4))
    with pytest.raises(ValueError, match="floating-point"):
        whitenorm.CovariancePooling()(torch.ones(2, 4, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="eps"):
        whitenorm.CovariancePooling(eps=-1.0)
