"""The solvers on matrices: right on every spectrum, differentiable, and clear about what they take."""

import pytest
import torch

from tests.helpers import reference
from tests.helpers.cases import DEVICES, SOLVERS, TOLERANCE, assert_close
from whitenorm.solvers import PCA, ZCA, Cholesky, Minimax, Newton, Solver, as_solver, inverse_sqrt, products, sqrt

EXACT = ["zca", "pca", "cholesky", Newton(steps=40), Minimax(steps=8)]


def with_spectrum(values, seed=0, batch=(2, 3)):
    """Matrices of given eigenvalues, and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.as_tensor(values, dtype=torch.float64)
    vectors = torch.linalg.qr(torch.randn(*batch, len(values), len(values), generator=generator).double())[0]
    return vectors * values @ vectors.mT


SPECTRA = {
    "well-conditioned": [0.5, 1.0, 1.5, 2.0, 3.0, 4.0],
    "condition 1e6": [1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0],
    "repeated": [1.0, 1.0, 1.0, 2.0, 2.0, 2.0],
    "identity": [1.0] * 6,
    "rank-deficient": [0.0, 0.0, 0.0, 1.0, 2.0, 3.0],
    "all zero": [0.0] * 6,
    "tiny": [1e-8] * 3 + [2e-8] * 3,
    "huge": [1e8] * 3 + [3e8] * 3,
}


@pytest.mark.parametrize("solver", EXACT, ids=str)
@pytest.mark.parametrize("spectrum", ["well-conditioned", "condition 1e6", "repeated", "identity", "tiny", "huge"])
def test_whitens_and_colours(solver, spectrum):
    cov = with_spectrum(SPECTRA[spectrum])
    identity = torch.eye(6, dtype=torch.float64).expand_as(cov)
    whitening, colouring = inverse_sqrt(cov, solver), sqrt(cov, solver)
    assert_close(whitening @ cov @ whitening.mT, identity, torch.float64, "whitening")
    assert_close(whitening @ colouring, identity, torch.float64, "inverse")
    assert_close(colouring @ colouring.mT / cov.abs().max(), cov / cov.abs().max(), torch.float64, "colouring")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_finite_on_batches_of_two_points(solver, dtype, device):
    """Whose covariances are sums of equal terms, with errors that add up."""
    batch = []
    for number in (16, 128, 4096):
        x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))[torch.arange(number) % 2].to(device, dtype)
        x = x - x.mean(0)
        batch.append(x.mT @ x / number)
    cov = torch.stack(batch).requires_grad_()
    whitening = inverse_sqrt(cov, solver)
    assert whitening.isfinite().all()
    assert torch.autograd.grad(whitening.sum(), cov)[0].isfinite().all()
    assert torch.func.vjp(lambda cov: inverse_sqrt(cov, solver), cov)[0].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_finite_on_every_spectrum(solver, spectrum, dtype, device):
    cov = with_spectrum(SPECTRA[spectrum]).to(device=device, dtype=dtype).requires_grad_()
    for function in (inverse_sqrt, sqrt):
        result = function(cov, solver)
        assert result.isfinite().all()
        (gradient,) = torch.autograd.grad(result.sum(), cov)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 7])
@pytest.mark.parametrize("spectrum", ["well-conditioned", "condition 1e6", "repeated", "rank-deficient"])
def test_newton_is_the_papers_iterate(spectrum, steps):
    cov = with_spectrum(SPECTRA[spectrum], batch=())
    assert_close(inverse_sqrt(cov, Newton(steps)), reference.newton(cov, steps), torch.float64)


def test_newton_without_steps_only_scales():
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=())
    assert_close(inverse_sqrt(cov, Newton(0)), torch.eye(6) / torch.trace(cov).sqrt(), torch.float64)


@pytest.mark.parametrize("condition", [8.0, 1e4])
def test_forty_newton_steps_stay_stable_in_float32(condition):
    """The uncoupled iteration has left for infinity by then."""
    cov = with_spectrum(torch.logspace(0, torch.log10(torch.tensor(condition)).item(), 16), batch=())
    uncoupled = reference.newton(cov.float(), 40)
    whitening = inverse_sqrt(cov.float(), Newton(40))
    exact = reference.zca(cov)
    assert (whitening - exact).abs().max() <= 2e-3 * exact.abs().max()
    assert not (uncoupled - exact).abs().max() <= 0.1 * exact.abs().max()


def test_newton_gradient_stays_finite_after_forty_steps():
    cov = with_spectrum(torch.logspace(0, 4, 16), batch=()).float().requires_grad_()
    weights = torch.randn(16, 16)
    (inverse_sqrt(cov, Newton(40)) * weights).sum().backward()
    exact = cov.detach().double().requires_grad_()
    (reference.zca(exact) * weights).sum().backward()
    symmetric = (exact.grad + exact.grad.T) / 2
    assert (cov.grad - symmetric).norm() <= 1e-2 * symmetric.norm()


@pytest.mark.parametrize("solver", [*SOLVERS, Newton(0), pytest.param(reference.cholesky, id="function")], ids=str)
def test_gradients_to_second_order(solver):
    cov = with_spectrum(SPECTRA["well-conditioned"][:4], batch=(2,))
    cov = cov.requires_grad_()
    for function in (inverse_sqrt, sqrt):
        assert torch.autograd.gradcheck(lambda cov, f=function: f(cov, solver), cov)
        assert torch.autograd.gradgradcheck(lambda cov, f=function: f(cov, solver), cov)


@pytest.mark.parametrize("solver", ["newton", Newton(40), "zca", "cholesky", "minimax"], ids=str)
def test_gradients_at_repeated_eigenvalues(solver):
    """PCA alone has a true pole there."""
    cov = with_spectrum([1.0, 1.0, 2.0, 2.0], batch=()).requires_grad_()
    assert torch.autograd.gradcheck(lambda cov: inverse_sqrt(cov, solver), cov)
    assert torch.autograd.gradgradcheck(lambda cov: inverse_sqrt(cov, solver), cov)


def test_zca_gradient_where_an_eigenvalue_is_floored():
    """The derivative is that of the floored function: nothing moves along a direction below the floor."""
    cov = torch.diag(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)).requires_grad_()
    inverse_sqrt(cov, "zca").diagonal().sum().backward()
    assert_close(cov.grad.diagonal(), torch.tensor([0.0, -0.5, -0.5 * 2**-1.5]), torch.float64)


def test_pca_gradient_where_an_eigenvalue_is_floored():
    cov = torch.diag(torch.tensor([2.0, 1.0, 1e-20], dtype=torch.float64)).requires_grad_()
    inverse_sqrt(cov, "pca").diagonal().sum().backward()
    assert_close(cov.grad.diagonal(), torch.tensor([-0.5 * 2**-1.5, -0.5, 0.0]), torch.float64)


def test_second_derivative_at_a_floored_eigenvalue_is_nan_rather_than_wrong():
    cov = torch.diag(torch.tensor([1e-20, 1.0])).double().requires_grad_()
    (gradient,) = torch.autograd.grad(inverse_sqrt(cov, "zca").sum(), cov, create_graph=True)
    (expected,) = torch.autograd.grad(inverse_sqrt(cov, "zca").sum(), cov)
    assert torch.equal(gradient, expected)
    (second,) = torch.autograd.grad(gradient.sum(), cov)
    assert second.isnan().any()


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_nan_shows_as_nan_in_its_matrix_alone(solver):
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=(3,)).float()
    cov[1] = torch.nan
    cov.requires_grad_()
    whitening = inverse_sqrt(cov, solver)
    whitening.sum().backward()
    for tensor in (whitening, cov.grad):
        assert tensor[1].isnan().any()
        assert tensor[[0, 2]].isfinite().all()


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_only_the_symmetric_part_matters(solver):
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=())
    skew = torch.randn(6, 6, dtype=torch.float64)
    assert_close(inverse_sqrt(cov + skew - skew.mT, solver), inverse_sqrt(cov, solver), torch.float64)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_vmap_and_jacobians(solver):
    cov = with_spectrum(SPECTRA["well-conditioned"][:4], batch=(3,))
    batched = torch.vmap(lambda matrix: inverse_sqrt(matrix, solver))(cov)
    assert_close(batched, inverse_sqrt(cov, solver), torch.float64)
    jacobian = torch.func.jacrev(lambda matrix: inverse_sqrt(matrix, solver))(cov[0])
    expected = torch.autograd.functional.jacobian(lambda matrix: inverse_sqrt(matrix, solver), cov[0])
    assert_close(jacobian, expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_matrices_are_solved_in_float32(dtype):
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=()).to(dtype)
    result = inverse_sqrt(cov, "zca")
    assert result.dtype == dtype
    assert (result.double() - reference.zca(cov.double())).abs().max() <= TOLERANCE[dtype]


def test_autocast_does_not_reach_the_solver():
    cov = with_spectrum(SPECTRA["condition 1e6"], batch=()).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = inverse_sqrt(cov, Newton(7))
    assert torch.equal(inside, inverse_sqrt(cov, Newton(7)))


def test_pca_rows_are_ordered_and_signed():
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=())
    whitening = inverse_sqrt(cov, "pca")
    assert_close(whitening, reference.pca(cov), torch.float64)
    assert (whitening[:, 0] >= 0).all()


def test_solvers_compare_and_print_by_value():
    assert as_solver("newton") == Newton(5)
    assert Newton(5) != Newton(7)
    assert ZCA() != PCA()
    assert len({Newton(3), Newton(3), Cholesky()}) == 2
    assert repr([Newton(3), ZCA()]) == "[Newton(steps=3), ZCA()]"


class TestErrors:
    def test_an_unfinished_solver_cannot_be_made(self):
        class Unfinished(Solver):
            def solve(self, cov):
                return cov, ()

        with pytest.raises(TypeError, match="abstract"):
            Unfinished()

    @pytest.mark.parametrize("solver", ["svd", None, 3, ZCA])
    def test_unknown_solver_lists_the_known_ones(self, solver):
        with pytest.raises(ValueError, match='"newton", "zca", "pca", "cholesky", "minimax"'):
            inverse_sqrt(torch.eye(3), solver)

    @pytest.mark.parametrize("steps", [-1, 2.5, True, "5"])
    def test_steps(self, steps):
        with pytest.raises(ValueError, match="whole number of at least 0"):
            Newton(steps)

    def test_not_square(self):
        with pytest.raises(ValueError, match=r"square matrices .* \(got \(3, 4\)\)"):
            inverse_sqrt(torch.zeros(3, 4))

    def test_integers(self):
        with pytest.raises(ValueError, match="floating-point"):
            inverse_sqrt(torch.eye(3, dtype=torch.long))

    def test_a_function_may_return_or_overwrite_its_argument(self):
        cov = torch.eye(3, requires_grad=True)
        assert torch.equal(inverse_sqrt(cov, lambda cov: cov), torch.eye(3))
        assert torch.equal(inverse_sqrt(cov.detach(), lambda cov: cov.mul_(2)), 2 * torch.eye(3))
        assert torch.equal(cov, torch.eye(3))

    def test_a_function_of_the_wrong_dtype(self):
        with pytest.raises(ValueError, match=r"torch.float32 \(got \(3, 3\) torch.float64\)"):
            inverse_sqrt(torch.eye(3), lambda cov: cov.double())

    def test_a_function_of_the_wrong_shape(self):
        with pytest.raises(ValueError, match=r"\(3, 3\) torch.float32 \(got \(3,\) torch.float32\)"):
            inverse_sqrt(torch.eye(3), lambda cov: cov[0])


@pytest.mark.parametrize("solver", ["newton", Newton(steps=0), "minimax"], ids=str)
def test_many_matrices_are_taken_in_chunks(solver, monkeypatch):
    cov = with_spectrum(SPECTRA["well-conditioned"], batch=(5, 7)).requires_grad_()
    grad = torch.randn_like(cov)
    whole = inverse_sqrt(cov, solver)
    (whole_grad,) = torch.autograd.grad(whole, cov, grad)
    monkeypatch.setattr(products, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(products, "_BUFFER_BYTES", 1)
    assert_close(inverse_sqrt(cov, solver), whole, torch.float64)
    assert_close(torch.autograd.grad(inverse_sqrt(cov, solver), cov, grad)[0], whole_grad, torch.float64)
