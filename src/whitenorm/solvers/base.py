"""The interface of solvers, and the differentiable function built on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from whitenorm._runtime import smallest, vjp


def symmetric(matrix: Tensor) -> Tensor:
    """Return the symmetric part of each matrix of a batch ``(..., K, K)``."""
    return (matrix + matrix.mT) / 2


def rounding(cov: Tensor) -> Tensor:
    """Return the size of the rounding error in each covariance as ``(..., 1, 1)``, a constant to autograd.

    Eigenvalues below it are unknown.
    """
    # Divided by the largest entry first, because squares of large covariances would overflow.
    cov = cov.detach()
    largest = cov.abs().amax((-2, -1), keepdim=True).clamp_min(smallest(cov.dtype))
    norm = largest * torch.linalg.matrix_norm(cov / largest, keepdim=True)
    return 2 * torch.finfo(cov.dtype).eps * norm.clamp_min(smallest(cov.dtype))


class Solver(ABC):
    """A method that turns covariance matrices ``(..., K, K)`` into whitening matrices of the same shape.

    A solver is stateless and compares by value. It has an analytic gradient, so that layers save only K×K matrices.
    """

    @abstractmethod
    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the whitening matrix, and residuals: the other tensors that :meth:`backward` needs."""

    @abstractmethod
    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        """Return the gradient of the covariance, which is symmetric, from that of the whitening matrix."""

    def differentiable(self, cov: Tensor) -> Tensor:
        """Return the whitening matrix by operations that autograd can differentiate to any order and in any mode."""
        return self.solve(cov)[0]

    def reduce(self, eigenvalue: float, multiplicity: int) -> Solver | None:
        """Return a solver that gives the same function of the spectrum for a reduced covariance, or None.

        A reduced covariance lacks an ``eigenvalue`` that the whole one has ``multiplicity`` times. None means that the
        solver's matrix is no function of the spectrum.
        """
        return None

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(vars(self).items())))


class Custom(Solver):
    """A solver made of a user's function from covariance to whitening matrix, differentiated by autograd."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        # A copy, because the function may write into it or return it.
        whitening = self.function(cov.clone())
        if not isinstance(whitening, Tensor) or (whitening.shape, whitening.dtype) != (cov.shape, cov.dtype):
            got = f"{tuple(whitening.shape)} {whitening.dtype}" if isinstance(whitening, Tensor) else type(whitening)
            raise ValueError(
                f"expected the solver {self!r} to return a tensor of its covariance's shape and dtype, "
                f"{tuple(cov.shape)} {cov.dtype} (got {got}); a solver maps (..., K, K) to (..., K, K)"
            )
        return whitening, ()

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        return symmetric(vjp(self.differentiable, cov)[1](grad)[0])


class InverseSqrt(torch.autograd.Function):
    """Autograd function of :meth:`Solver.solve` with the solver's analytic gradient, differentiable twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(cov: Tensor, solver: Solver) -> tuple[Tensor, ...]:
        whitening, residuals = solver.solve(cov)
        return whitening, *residuals

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        cov, ctx.solver = inputs
        whitening, *residuals = output
        ctx.mark_non_differentiable(*residuals)
        ctx.save_for_backward(cov, whitening, *residuals)

    @staticmethod
    def backward(ctx, grad: Tensor, *_: Tensor):  # type: ignore[no-untyped-def]
        cov, whitening, *residuals = ctx.saved_tensors
        if torch.is_grad_enabled():
            return vjp(ctx.solver.differentiable, cov)[1](grad)[0], None
        return ctx.solver.backward(grad, cov, whitening, tuple(residuals)), None
