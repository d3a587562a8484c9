"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.runtime.memory import Ring
from whitenorm.runtime.mode import is_transformed
from whitenorm.solvers.base import Solver, by_chunks, smallest, symmetric, trace

# Products that are still needed at any time, in the iteration, and in it with its derivative beside it.
_IN_USE = 6
_IN_USE_WITH_DERIVATIVE = 16


class Newton(Solver):
    r"""Whitening by ``steps`` Newton iterations on the trace-normalised covariance (IterNorm, algorithm 1).

    .. math:: \Sigma_N = \Sigma / \operatorname{tr}\Sigma, \qquad P_0 = I, \qquad
              P_k = \tfrac12 (3 P_{k-1} - P_{k-1}^3 \Sigma_N), \qquad W = P_T / \sqrt{\operatorname{tr}\Sigma}

    The iterates are computed in the coupled form: with :math:`Y_0 = \Sigma_N`, :math:`Z_0 = I`,

    .. math:: T_k = \tfrac12 (3I - Z_k Y_k), \qquad Y_{k+1} = Y_k T_k, \qquad Z_{k+1} = T_k Z_k,

    which gives the same :math:`P_k = Z_k` but does not amplify rounding errors, so any number of steps and any
    condition number are safe. At the paper's five steps the result is *not* :math:`\Sigma^{-1/2}` along
    directions whose share of the trace is small: their variance stays below one, by design. With
    ``steps=0`` it only scales.

    Gradients pass through the trace, and need no way back through the iterates: W is a polynomial of a symmetric
    matrix, so its derivative is its own adjoint, and a gradient is taken back by the *forward* derivative in its
    direction. It is computed beside the iteration; nothing is kept but the covariance and W.

    Example::

        >>> cov = torch.diag(torch.tensor([1.0, 4.0]))
        >>> Newton(steps=10).solve(cov)[0].diagonal()
        tensor([1.0000, 0.5000])
    """

    _lost_trace = 0.0

    def __init__(self, steps: int = 5) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"expected steps to be a whole number of at least 0 (got {steps!r}); the paper uses 5")
        self.steps = steps

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return by_chunks(partial(self._solve, Ring(_IN_USE)), cov), ()

    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return cov, whitening

    def restore(self, *kept: Tensor) -> Tensor:
        return kept[1]

    def pull_back(self, grad: Tensor, *kept: Tensor) -> Tensor:
        return by_chunks(partial(self._pull_back, Ring(_IN_USE_WITH_DERIVATIVE)), *kept, grad)

    def reduced(self, lost_trace: float) -> Solver | None:
        if type(self) is not Newton:
            return None  # A subclass may solve for something else.
        solver = Newton(self.steps)
        solver._lost_trace = lost_trace
        return solver

    def _solve(self, ring: Ring, cov: Tensor) -> Tensor:
        root_trace = (trace(cov) + self._lost_trace).clamp_min(smallest(cov.dtype)).sqrt()
        if self.steps == 0:
            return torch.diag_embed((1 / root_trace).squeeze(-1).expand(cov.shape[:-1]))
        iterate = _first(ring, cov, root_trace)
        for _ in range(1, self.steps):
            iterate = _next(ring, *iterate)
        return _times(iterate.t, iterate.z, ring) / root_trace

    def _pull_back(self, ring: Ring, cov: Tensor, whitening: Tensor, grad: Tensor) -> Tensor:
        root_trace = (trace(cov) + self._lost_trace).clamp_min(smallest(cov.dtype)).sqrt()
        through_trace = _inner(grad, whitening) / 2
        if self.steps == 0:
            return torch.diag_embed((-through_trace / root_trace**2).squeeze(-1).expand(cov.shape[:-1]))
        along = torch.div(symmetric(grad), root_trace, out=ring(grad))
        derivative = symmetric(_derivative(_with_ridge(cov / root_trace**2), along, self.steps, ring))
        through_trace = through_trace + _inner(derivative, cov) / root_trace**2
        return _plus_identity(derivative, -through_trace.squeeze(-1)) / root_trace**2


class _Iterate(NamedTuple):
    """Y, Z and T of a step, with the factor -1/2 in Y: T = 3/2·I + Z·Y. The first Z, the identity, is None."""

    y: Tensor
    z: Tensor | None
    t: Tensor


def _first(ring: Ring, cov: Tensor, root_trace: Tensor) -> _Iterate:
    y = _with_ridge(torch.mul(cov, -0.5 / root_trace**2, out=ring(cov)), -1)
    return _Iterate(y, None, _plus_identity(y.clone(), 1.5))


def _with_ridge(start: Tensor, sign: int = 1) -> Tensor:
    """The start with a ridge of rounding error's size: on an eigenvalue that rounding has made negative, the iteration
    would leave for infinity.
    """
    rounding = 2 * torch.finfo(start.dtype).eps * torch.linalg.matrix_norm(start.detach())
    return _plus_identity(start, sign * rounding.unsqueeze(-1))


def _next(ring: Ring, y: Tensor, z: Tensor | None, t: Tensor) -> _Iterate:
    z = _times(t, z, ring)
    y = torch.bmm(y, t, out=ring(y))
    return _Iterate(y, z, _plus_identity(torch.bmm(z, y, out=ring(y)), 1.5))


def _derivative(start: Tensor, along: Tensor, steps: int, ring: Ring) -> Tensor:
    r"""The derivative of the last Z by the start, in the direction ``along``, both symmetric.

    With :math:`U = Z^2 \Sigma_N`, which stays a function of itself, and :math:`S = \tfrac12 (3I - U)`, a step is

    .. math:: U' = U S^2, \qquad Z' = Z S, \qquad M = dU\, S, \qquad
              dU' = M S - \tfrac12 U (M + M^T), \qquad dZ' = dZ\, S - \tfrac12 Z\, dU

    from Z = I and dZ = 0.
    """
    u, du = start, along
    # Of the first step, whose Z is I and dZ is 0.
    s = z = _half_of_three_minus(u, ring)
    dz = torch.mul(du, -0.5, out=ring(du))
    for step in range(1, steps):
        m = torch.bmm(du, s, out=ring(u))
        both = torch.add(m, m.mT, out=ring(u))
        du = torch.bmm(m, s, out=ring(u)).baddbmm_(u, both, alpha=-0.5)
        u = torch.bmm(torch.bmm(u, s, out=ring(u)), s, out=ring(u))
        s = _half_of_three_minus(u, ring)
        dz = torch.bmm(dz, s, out=ring(u)).baddbmm_(z, du, alpha=-0.5)
        if step < steps - 1:
            z = torch.bmm(z, s, out=ring(u))
    return dz


def _half_of_three_minus(matrix: Tensor, ring: Ring) -> Tensor:
    """(3I - matrix) / 2."""
    return _plus_identity(torch.mul(matrix, -0.5, out=ring(matrix)), 1.5)


def _times(a: Tensor, z: Tensor | None, ring: Ring) -> Tensor:
    return a if z is None else torch.bmm(a, z, out=ring(a))


def _plus_identity(matrix: Tensor, factor: float | Tensor) -> Tensor:
    """matrix + factor·I, written into the matrix where exporters do not mind."""
    if is_transformed():
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        return matrix + (factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor) * identity
    matrix.diagonal(dim1=-2, dim2=-1).add_(factor)
    return matrix


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """tr(aᵀb) of each pair, as ``(..., 1, 1)``."""
    return (a * b).sum((-2, -1), keepdim=True)
