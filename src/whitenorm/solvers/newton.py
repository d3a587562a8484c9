"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whitenorm.runtime.memory import Ring
from whitenorm.solvers.base import Solver, by_chunks, smallest, trace

# Products that are still needed at any time.
_IN_USE = 6


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
        return by_chunks(partial(self._pull_back, Ring(_IN_USE), Ring(_IN_USE)), *kept, grad)

    def reduced(self, lost_trace: float) -> Solver | None:
        if type(self) is not Newton:
            return None  # A subclass may solve for something else.
        solver = Newton(self.steps)
        solver._lost_trace = lost_trace
        return solver

    def _solve(self, ring: Ring, cov: Tensor) -> Tensor:
        trace, identity = self._trace(cov), _identity(cov)
        if self.steps == 0:
            return identity * trace.rsqrt()
        y, z = _start(cov, trace, identity), None
        t = torch.add(1.5 * identity, y, alpha=-0.5)
        for _ in range(1, self.steps):
            z = t if z is None else torch.bmm(t, z, out=ring(t))
            y = torch.bmm(y, t, out=ring(t))
            t = torch.baddbmm(identity, z, y, beta=1.5, alpha=-0.5, out=ring(t))
        z = t if z is None else torch.bmm(t, z, out=ring(t))
        return z * trace.rsqrt()

    def _pull_back(self, ring: Ring, pairs: Ring, cov: Tensor, whitening: Tensor, grad: Tensor) -> Tensor:
        trace, identity = self._trace(cov), _identity(cov)
        if self.steps == 0:
            return identity * (-0.5 * _inner(grad, whitening) / trace)
        start = _start(cov, trace, identity)
        # In two steps: the trace to the power of 3/2 leaves float32's range.
        along = (grad + grad.mT) * (0.25 * trace.rsqrt())
        half = _derivative(start, along, self.steps, ring, pairs)
        derivative = half + half.mT
        through_trace = torch.add(_inner(derivative, start), _inner(grad, whitening), alpha=0.5)
        return torch.addcmul(derivative, through_trace, identity, value=-1) / trace

    def _trace(self, cov: Tensor) -> Tensor:
        total = trace(cov)
        return (total + self._lost_trace if self._lost_trace else total).clamp_min(smallest(cov.dtype))


def _identity(cov: Tensor) -> Tensor:
    return torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)


def _start(cov: Tensor, trace: Tensor, identity: Tensor) -> Tensor:
    """Σ/tr Σ with a ridge of rounding error's size: on an eigenvalue that rounding has made negative, the iteration
    would leave for infinity.
    """
    start = cov / trace
    norm = torch.linalg.matrix_norm(start.detach(), keepdim=True)
    return torch.addcmul(start, norm, identity, value=2 * torch.finfo(cov.dtype).eps)


def _derivative(start: Tensor, along: Tensor, steps: int, ring: Ring, pairs: Ring) -> Tensor:
    r"""The derivative of the last Z by the start, in the direction ``along``, both symmetric.

    With :math:`U = Z^2 \Sigma_N`, which stays a function of itself, and :math:`S = \tfrac12 (3I - U)`, a step is

    .. math:: U' = U S^2, \qquad Z' = Z S, \qquad M = dU\, S, \qquad
              dU' = M S - \tfrac12 U (M + M^T), \qquad dZ' = dZ\, S - \tfrac12 Z\, dU

    from Z = I and dZ = 0. U and dU are multiplied by S in one product, as two matrices one above the other, and so are
    Z and dZ.
    """
    size = start.shape[-1]
    u_du = torch.cat((start, along), -2)
    above = 1.5 * torch.eye(2 * size, size, dtype=start.dtype, device=start.device)
    # The first step, whose Z is I and dZ is 0: S above -dU/2.
    z_dz = torch.add(above, u_du, alpha=-0.5)
    s = z_dz[:, :size]
    for step in range(1, steps):
        product = torch.bmm(u_du, s, out=pairs(u_du))
        m = product[:, size:]
        u, u_du = u_du[:, :size], torch.bmm(product, s, out=pairs(u_du))
        du = _less_half(u_du[:, size:], u, torch.add(m, m.mT, out=ring(m)), ring)
        s = torch.add(above[:size], u_du[:, :size], alpha=-0.5)
        z, dz = z_dz[:, :size], z_dz[:, size:]
        if step == steps - 1:
            return _less_half(torch.bmm(dz, s, out=ring(m)), z, du, ring)
        z_dz = torch.bmm(z_dz, s, out=pairs(z_dz))
        _less_half(z_dz[:, size:], z, du, ring)
    return z_dz[:, size:]


def _less_half(matrix: Tensor, a: Tensor, b: Tensor, ring: Ring) -> Tensor:
    """matrix ← matrix - a·b/2."""
    if matrix.device.type == "cpu":
        # Into a part of a tensor, a product would be added one matrix at a time.
        return matrix.sub_(torch.bmm(a, b, out=ring(a)), alpha=0.5)
    return matrix.baddbmm_(a, b, alpha=-0.5)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """tr(aᵀb) of each pair, as ``(..., 1, 1)``."""
    return (a * b).sum((-2, -1), keepdim=True)
