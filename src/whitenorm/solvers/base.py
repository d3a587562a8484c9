"""What a solver is, and the differentiable functions built on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from whitenorm._runtime import may_write_in_place, vjp

_CHUNK_BYTES = 2**19


def smallest(dtype: torch.dtype) -> float:
    """A floor for eigenvalues and traces whose power -3/2, met in every gradient, is still finite."""
    return float(torch.finfo(dtype).tiny ** 0.5)


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of each matrix of a batch ``(..., K, K)``."""
    return (matrix + matrix.mT) / 2


def trace(matrix: Tensor) -> Tensor:
    """The trace of each matrix of a batch, as ``(..., 1, 1)``."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def rounding(cov: Tensor) -> Tensor:
    """The size of the rounding error in each covariance, as ``(..., 1, 1)``: below it no eigenvalue is known.

    It counts as a constant.
    """
    # By the largest entry first: squares of large covariances would overflow.
    cov = cov.detach()
    largest = cov.abs().amax((-2, -1), keepdim=True).clamp_min(smallest(cov.dtype))
    norm = largest * torch.linalg.matrix_norm(cov / largest, keepdim=True)
    return 2 * torch.finfo(cov.dtype).eps * norm.clamp_min(smallest(cov.dtype))


def by_chunks(function: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """A function of batches ``(B, K, K)``, applied to ``(..., K, K)``; scalars come as ``(..., 1, 1)``.

    On a CPU, many matrices are taken in chunks that stay in the cache through all of the function's steps.
    """
    shape = matrices[0].shape
    flat = [matrix.reshape(-1, *matrix.shape[-2:]) for matrix in matrices]
    if flat[0].device.type != "cpu" or not may_write_in_place() or flat[0].nbytes <= _CHUNK_BYTES:
        return function(*flat).reshape(shape)
    chunk = max(1, len(flat[0]) * _CHUNK_BYTES // flat[0].nbytes)
    parts = [function(*part) for part in zip(*(matrix.split(chunk) for matrix in flat), strict=True)]
    return torch.cat(parts).reshape(shape)


class Solver(ABC):
    """A way from covariance matrices ``(..., K, K)`` to whitening matrices of the same shape.

    A solver is stateless and compares by value. It says itself what to keep for backward, so that the layers can keep
    one or two K×K tensors per covariance and still have analytic gradients.
    """

    @abstractmethod
    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The whitening matrix, and what else was found on the way to it."""

    @abstractmethod
    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Which of these tensors backward starts from."""

    @abstractmethod
    def restore(self, *kept: Tensor) -> Tensor:
        """The whitening matrix again."""

    @abstractmethod
    def backward(self, grad: Tensor, *kept: Tensor) -> Tensor:
        """From the gradient of the whitening matrix to the covariance's, which is symmetric."""

    def reduced(self, lost_trace: float) -> Solver | None:
        """The same function of the spectrum, for covariances from which equal eigenvalues were left out that add up to
        ``lost_trace``; None for a solver whose matrix is no such function.
        """
        return None

    def differentiable(self, cov: Tensor) -> Tensor:
        """The whitening matrix as a graph that autograd can differentiate to any order."""
        return self.solve(cov)[0]

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(vars(self).items())))


class Custom(Solver):
    """A solver made of the user's own function from covariance to whitening matrix; autograd differentiates it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        # A copy: the function may write into it, or return it.
        whitening = self.function(cov.clone())
        if not isinstance(whitening, Tensor) or (whitening.shape, whitening.dtype) != (cov.shape, cov.dtype):
            got = f"{tuple(whitening.shape)} {whitening.dtype}" if isinstance(whitening, Tensor) else type(whitening)
            raise ValueError(
                f"expected the solver {self!r} to return a tensor of its covariance's shape and dtype, "
                f"{tuple(cov.shape)} {cov.dtype} (got {got}); a solver maps (..., K, K) to (..., K, K)"
            )
        return whitening, ()

    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return cov, whitening

    def restore(self, *kept: Tensor) -> Tensor:
        return kept[1]

    def backward(self, grad: Tensor, *kept: Tensor) -> Tensor:
        return symmetric(vjp(self.differentiable, kept[0])[1](grad)[0])


class InverseSqrt(torch.autograd.Function):
    """``solver.solve`` with the solver's analytic gradient, and a true second derivative when one is asked for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(cov: Tensor, solver: Solver) -> tuple[Tensor, ...]:
        whitening, found = solver.solve(cov)
        return whitening, *found

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        cov, ctx.solver = inputs
        whitening, *found = output
        ctx.mark_non_differentiable(*found)
        ctx.save_for_backward(cov, *ctx.solver.keep(cov, whitening, tuple(found)))

    @staticmethod
    def backward(ctx, grad: Tensor, *_: Tensor):  # type: ignore[no-untyped-def]
        cov, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return vjp(ctx.solver.differentiable, cov)[1](grad)[0], None
        return ctx.solver.backward(grad, *kept), None
