"""Whitening matrix from covariance: Newton's iteration, ZCA, PCA, Cholesky and Minimax, on ``(..., K, K)``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whitenorm._runtime import apply_function, check_floating, compute_dtype, is_forward_mode, no_autocast
from whitenorm.solvers.base import Custom, InverseSqrt, Solver, symmetric
from whitenorm.solvers.cholesky import Cholesky
from whitenorm.solvers.minimax import Minimax
from whitenorm.solvers.newton import Newton
from whitenorm.solvers.spectral import PCA, ZCA

__all__ = ["PCA", "ZCA", "Cholesky", "Minimax", "Newton", "Solver", "as_solver", "inverse_sqrt", "sqrt"]

SolverLike = str | Solver | Callable[[Tensor], Tensor]

_NAMES: dict[str, type[Solver]] = {
    "newton": Newton,
    "zca": ZCA,
    "pca": PCA,
    "cholesky": Cholesky,
    "minimax": Minimax,
}


def as_solver(solver: SolverLike) -> Solver:
    """Return the solver for a name or a function ``(..., K, K) -> (..., K, K)``; solvers are returned as they are.

    Example::

        >>> as_solver("newton"), as_solver(ZCA())
        (Newton(steps=5), ZCA())
    """
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in _NAMES:
        return _NAMES[solver]()
    if callable(solver) and not isinstance(solver, type):
        return Custom(solver)
    known = ", ".join(f'"{name}"' for name in _NAMES)
    raise ValueError(
        f"expected solver to be one of {known}, a whitenorm.solvers object such as Newton(steps=5), "
        f"or a function from covariance to whitening matrix (got {solver!r})"
    )


def inverse_sqrt(cov: Tensor, solver: SolverLike = "newton") -> Tensor:
    r"""Return the whitening matrix W of each covariance, with :math:`W \Sigma W^T = I` (approximately for Newton).

    Computes in float32 or higher, also for half-precision inputs and under autocast, and returns the dtype of ``cov``.
    Gradients are analytic and differentiable. Only the symmetric part of ``cov`` matters.

    Args:
        cov: symmetric positive semi-definite matrices ``(..., K, K)``.
        solver: ``"newton"``, ``"zca"``, ``"pca"``, ``"cholesky"``, ``"minimax"``, a solver object, or a function.

    Example::

        >>> x = torch.randn(1000, 8) @ torch.randn(8, 8)
        >>> whitening = inverse_sqrt(torch.cov(x.T), "zca")
        >>> torch.allclose(torch.cov((x @ whitening.T).T), torch.eye(8), atol=1e-3)
        True
    """
    with no_autocast(cov):
        return _inverse_sqrt(_to_symmetric(cov), as_solver(solver)).to(cov.dtype)


def sqrt(cov: Tensor, solver: SolverLike = "newton") -> Tensor:
    r"""Return the colouring matrix of each covariance, :math:`C = \Sigma W^T` with :math:`C C^T = \Sigma` and C W = I.

    W is :func:`inverse_sqrt` of the same solver, so C is the symmetric root for ZCA, the Cholesky factor for Cholesky.

    Args:
        cov: symmetric positive semi-definite matrices ``(..., K, K)``.
        solver: as in :func:`inverse_sqrt`.

    Example::

        >>> sqrt(torch.diag(torch.tensor([4.0, 9.0])), "zca").diagonal()
        tensor([2., 3.])
    """
    with no_autocast(cov):
        wide = _to_symmetric(cov)
        return (wide @ _inverse_sqrt(wide, as_solver(solver)).mT).to(cov.dtype)


def _inverse_sqrt(cov: Tensor, solver: Solver) -> Tensor:
    whitening: Tensor = solver.differentiable(cov) if is_forward_mode() else apply_function(InverseSqrt, cov, solver)[0]
    return whitening


def _to_symmetric(cov: Tensor) -> Tensor:
    check_floating("cov", cov)
    if cov.ndim < 2 or cov.shape[-1] != cov.shape[-2]:
        raise ValueError(
            f"expected square matrices (..., K, K) (got {tuple(cov.shape)}); for (N, D) data use functional.whiten"
        )
    return symmetric(cov.to(compute_dtype(cov.dtype)))
