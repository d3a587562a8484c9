"""Orthogonal weights against ONI's formula in float64: values, gradients, orthogonality, state and errors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import TOLERANCE, assert_close
from whitenorm.layers.orthogonal import OrthogonalNewton

FLOAT64 = torch.float64
SHAPES = [(4, 12), (6, 6), (10, 3), (5, 3, 3, 2), (1, 7)]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("steps", "center", "scale"), [(0, True, 1), (5, True, 2**0.5), (7, False, 0.3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_papers_formula(shape, steps, center, scale, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = (3 * torch.randn(shape, generator=generator, dtype=FLOAT64) + 0.2).to(dtype).requires_grad_()
    exact = weight.detach().double().requires_grad_()
    actual = OrthogonalNewton(steps, center, scale)(weight)
    expected = reference.orthogonal_newton(exact, steps, center, scale)
    grad = torch.randn(shape, generator=generator, dtype=FLOAT64)
    actual.backward(grad.to(dtype))
    expected.backward(grad.to(dtype).double())
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)
    assert_close(weight.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=FLOAT64).requires_grad_()
    assert torch.autograd.gradcheck(OrthogonalNewton(4), weight)
    assert torch.autograd.gradgradcheck(OrthogonalNewton(4), weight)


@pytest.mark.parametrize("center", [True, False])
def test_rows_or_columns_become_orthonormal(center):
    wide, tall = (OrthogonalNewton(40, center)(torch.randn(shape, dtype=FLOAT64)) for shape in ((4, 12), (12, 4)))
    assert_close(wide @ wide.T, torch.eye(4), FLOAT64)
    assert_close(tall.T @ tall, torch.eye(4) - (0.25 if center else 0), FLOAT64)


def test_orthogonality_grows_with_steps():
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    errors = []
    for steps in (1, 3, 5, 10):
        w = OrthogonalNewton(steps)(weight)
        errors.append(torch.linalg.matrix_norm(w @ w.T - torch.eye(16)).item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-4


@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 5), lambda: nn.Conv2d(3, 5, 3), lambda: nn.Linear(4, 9)])
def test_stays_orthogonal_in_training_and_after_removal(make):
    torch.manual_seed(0)
    layer = whitenorm.orthogonal_newton(make(), steps=40, center=False)
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(1))
    x = torch.randn(8, 3, 6, 6) if isinstance(layer, nn.Conv2d) else torch.randn(8, layer.in_features)
    model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    assert not torch.allclose(layer.weight, before)
    w = layer.weight.flatten(1)
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    assert torch.allclose(gram, torch.eye(len(gram)), atol=1e-4)
    expected = model(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(model(x), expected)
    assert isinstance(layer.weight, nn.Parameter)


def test_state_dict_and_copies():
    layer = whitenorm.orthogonal_newton(nn.Conv2d(3, 5, 3))
    other = whitenorm.orthogonal_newton(nn.Conv2d(3, 5, 3))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)
    assert repr(layer.parametrizations.weight[0]) == "OrthogonalNewton(steps=5, center=True, scale=1.0)"
    # An orthogonal weight without means can be assigned and stays.
    weight = torch.linalg.qr(torch.randn(27, 5)).Q.T.reshape(5, 3, 3, 3)
    plain = whitenorm.orthogonal_newton(nn.Conv2d(3, 5, 3), center=False, steps=20)
    plain.weight = weight
    assert torch.allclose(plain.weight, weight, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-12, 1e12])
@pytest.mark.parametrize("center", [True, False])
def test_finite_for_constant_tiny_and_large_weights(center, value):
    weight = torch.full((3, 5), value, requires_grad=True)
    w = OrthogonalNewton(5, center)(weight)
    w.sum().backward()
    assert w.isfinite().all()
    assert weight.grad.isfinite().all()


def test_compiles():
    layer = whitenorm.orthogonal_newton(nn.Linear(6, 4))
    x = torch.randn(3, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)


def test_refuses():
    with pytest.raises(ValueError, match=r"Linear.bias .* at least two dimensions \(got \(4,\)\)"):
        whitenorm.orthogonal_newton(nn.Linear(6, 4), "bias")
    with pytest.raises(ValueError, match=r"ReLU.weight .* \(got NoneType\)"):
        whitenorm.orthogonal_newton(nn.ReLU())
    with pytest.raises(ValueError, match="steps"):
        whitenorm.orthogonal_newton(nn.Linear(6, 4), steps=-1)
    with pytest.raises(ValueError, match="scale"):
        whitenorm.orthogonal_newton(nn.Linear(6, 4), scale=-1.0)
