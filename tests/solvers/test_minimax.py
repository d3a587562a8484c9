"""The minimax solver: best polynomials, the accuracy it promises, and exactness beside ZCA."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.sampling import mark_slow
from tests.solvers.test_solvers import with_spectrum
from whitenorm.solvers import Minimax, inverse_sqrt
from whitenorm.solvers.minimax import _COMPOSITIONS
from whitenorm.solvers.remez import approximate_one, compose

STEPS = [1, 2, 3, 5, 7, 9]


@pytest.mark.parametrize("lower", [1e-6, 1e-3, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("upper", [1.0, 1.3])
def test_errors_alternate_at_four_points(lower, upper):
    """Chebyshev's theorem: no odd polynomial of degree five is then closer to 1."""
    (a, b, c), error = approximate_one(lower, upper)
    x = torch.linspace(lower, upper, 100_001, dtype=torch.float64)
    deviation = x * (a + b * x**2 + c * x**4) - 1
    assert deviation.abs().max() <= error * (1 + 1e-9)
    extreme = deviation[deviation.abs() >= error * (1 - 1e-4)].sign()
    assert torch.unique_consecutive(extreme).tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("steps", STEPS)
def test_compositions_are_exact_on_their_interval(steps):
    x = torch.logspace(-12, 0, 4001, dtype=torch.float64)
    result = x
    for a, b, c in Minimax(steps).polynomials:
        result = result * (a + b * result**2 + c * result**4)
    variances = result**2
    for condition in (1.0, 10.0, 1e3, 1e5, 1e7):
        promised = Minimax(steps).largest_error(condition, 1)
        assert (variances[x >= condition**-0.5] - 1).abs().max() <= promised + 2e-14
    assert (variances <= 1 + 2e-14).all() or steps < 3


def test_another_step_takes_eighteen_times_the_condition():
    assert 17 < (compose_end(7) / compose_end(8)) ** 2 < 20
    assert Minimax(7).largest_error(2e5, 1) < 1e-15 < Minimax(7).largest_error(1e6, 1)


def compose_end(steps):
    """Return the end of the widest interval by plain search."""
    ends = torch.logspace(-1, -5, 401, dtype=torch.float64).tolist()
    return min(end for end in ends if compose(end, steps)[1] <= 2.0**-53)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 6e-8), (torch.float64, 1.2e-16)], ids=str)
@pytest.mark.parametrize("size", mark_slow([16, 64, 256], sample=[16, 64]))
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
def test_accuracy_is_as_promised(condition, size, dtype, unit):
    exponent = -torch.log10(torch.tensor(condition)).item()
    for values in (torch.logspace(exponent, 0, size), torch.tensor([10.0**exponent] + [1.0] * (size - 1))):
        cov = with_spectrum(values, batch=(2,))
        for steps in (5, 7, 9):
            whitening = inverse_sqrt(cov.to(dtype), Minimax(steps)).double()
            deviation = torch.linalg.matrix_norm(whitening @ cov @ whitening.mT - torch.eye(size), ord=2).max()
            rounding = 4 * condition * size**0.5 + 1 / _COMPOSITIONS[steps][1]
            assert deviation <= Minimax(steps).largest_error(condition, size) + unit * rounding


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("condition", [3.0, 1e3, 1e6])
def test_composes_the_polynomials_of_the_eigenvalues(steps, condition):
    cov = with_spectrum(torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), 6), batch=())
    values, vectors = torch.linalg.eigh(cov / cov.norm())
    x = values.sqrt()
    for a, b, c in Minimax(steps).polynomials:
        x = x * (a + b * x**2 + c * x**4)
    expected = vectors * (x / (values * cov.norm()).sqrt()) @ vectors.mT
    for actual in (inverse_sqrt(cov, Minimax(steps)), reference.minimax(cov, Minimax(steps).polynomials)):
        assert (actual - expected).abs().max() <= 1e-10 * expected.abs().max()


def test_is_zca_in_float64():
    cov = with_spectrum(torch.logspace(0, -4, 12), batch=())
    expected = reference.zca(cov)
    assert (inverse_sqrt(cov, "minimax") - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_gradients_of_any_number_of_steps(steps):
    cov = with_spectrum([0.01, 0.5, 2.0, 3.0], batch=(2,)).requires_grad_()
    assert torch.autograd.gradcheck(lambda cov: inverse_sqrt(cov, Minimax(steps)), cov)
    # Out of reach of the polynomials.
    cov = with_spectrum([1e-9, 0.5, 2.0, 3.0], batch=()).requires_grad_()
    grad = torch.randn_like(cov)
    expected = torch.autograd.grad((Minimax(steps).differentiable(cov) * grad).sum(), cov)[0]
    actual = torch.autograd.grad((inverse_sqrt(cov, Minimax(steps)) * grad).sum(), cov)[0]
    symmetric = (expected + expected.mT) / 2
    assert (actual - symmetric).norm() <= 1e-6 * symmetric.norm()


def test_steps_beyond_the_precision():
    """A thousand, the most that a record may have, find their polynomials at once."""
    assert len(Minimax(1000).polynomials) == 1000
    cov = with_spectrum([1e-3, 0.5, 1.0], batch=())
    assert (inverse_sqrt(cov, Minimax(40)) - reference.zca(cov)).abs().max() <= 1e-6
    for scale in (1.0, 1e-8):
        error = inverse_sqrt(scale * cov.float(), Minimax(12)).double() * scale**0.5 - reference.zca(cov)
        assert error.abs().max() <= 0.05 * reference.zca(cov).abs().max()


@pytest.mark.parametrize("steps", [7, 20])
def test_eigenvalues_that_rounding_made_negative(steps):
    cov = with_spectrum([-2e-6, 0.0, 0.5, 1.0], batch=(2,)).float().requires_grad_()
    whitening = inverse_sqrt(cov, Minimax(steps))
    (grad,) = torch.autograd.grad(whitening.sum(), cov)
    assert whitening.isfinite().all()
    assert grad.isfinite().all()


def test_norms_that_overflow_when_squared():
    cov = torch.diag(torch.tensor([1e30, 4e30]))
    assert torch.allclose(inverse_sqrt(cov, "minimax") * 1e15, torch.diag(torch.tensor([1.0, 0.5])), atol=1e-6)


@pytest.mark.parametrize("eps", [1e-2, 0.5])
@pytest.mark.parametrize("num_groups", [3, 4, 6, 12])
def test_group_whitening_of_few_values_solves_the_small_side(num_groups, eps):
    torch.manual_seed(0)
    x = torch.randn(7, 24, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(7, 24, dtype=torch.float64)
    for steps in (2, 7):
        layer = whitenorm.GroupWhitening(num_groups, 24, Minimax(steps), eps=eps, dtype=torch.float64)
        y, exact = layer(x), reference.forward(layer, x)
        assert (y - exact).abs().max() <= 1e-10
        (actual,), (expected,) = torch.autograd.grad(y, x, grad), torch.autograd.grad(exact, x, grad)
        assert (actual - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize("population", ["whitening", pytest.param("covariance", marks=pytest.mark.slow)])
def test_layers_compile_export_and_fold(population):
    """Without an eigendecomposition, in a single graph, also where the matrix is computed in eval mode."""
    torch.manual_seed(0)
    layer = whitenorm.BatchWhitening(8, solver="minimax", population=population)
    x = torch.randn(16, 8, 3, 3)
    exact, other = copy.deepcopy(layer), copy.deepcopy(layer)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for function, leaf in zip((compiled, exact), inputs, strict=True):
        (function(leaf) ** 3).sum().backward()
    assert torch.allclose(inputs[0].grad, inputs[1].grad, atol=1e-4)
    assert torch.allclose(compiled.eval()(x), exact.eval()(x), atol=1e-5)
    assert torch.allclose(torch.export.export(other, (x,)).module()(x), copy.deepcopy(other)(x), atol=1e-5)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), exact).eval()
    expected = model(x)
    assert torch.allclose(whitenorm.fold_(model)(x), expected, atol=1e-5)
    assert not isinstance(model[1], whitenorm.Whitening)


def test_value_semantics():
    assert Minimax(7) == Minimax() != Minimax(8)
    assert repr(Minimax(8)) == "Minimax(steps=8)"
    assert copy.deepcopy(Minimax(6)) == Minimax(6)
    layer = whitenorm.BatchWhitening(8, solver="minimax")
    assert "solver=Minimax(steps=7)" in repr(layer)
    record = whitenorm.conversion_of(
        whitenorm.convert_(torch.nn.Sequential(torch.nn.BatchNorm2d(8)), "bw-sigma", solver=Minimax(6))
    )
    assert "'name': 'minimax', 'steps': 6" in str(record)


def test_unpickles_in_another_process():
    """Where its polynomials have not been computed."""
    code = f"import pickle; print(pickle.loads({pickle.dumps(Minimax(11))!r}).polynomials)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(Minimax(11).polynomials)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "5"])
def test_steps(steps):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Minimax(steps)
