"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whitenorm._runtime import Ring
from whitenorm.solvers.base import Solver, by_chunks, smallest, trace

# One more than the results of a step, each of which is last needed in the next one.
_IN_USE, _PAIRS_IN_USE = 8, 2


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
        trace = self._trace(cov)
        return by_chunks(partial(self._solve, Ring(_IN_USE)), cov, trace), (trace,)

    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return cov, whitening, *found

    def restore(self, *kept: Tensor) -> Tensor:
        return kept[1]

    def backward(self, grad: Tensor, *kept: Tensor) -> Tensor:
        cov, whitening, *found = kept
        trace = found[0] if found else self._trace(cov)
        return by_chunks(partial(self._pull_back, Ring(_IN_USE), Ring(_PAIRS_IN_USE)), cov, whitening, trace, grad)

    def reduced(self, lost_trace: float) -> Solver | None:
        if type(self) is not Newton:
            return None  # A subclass may solve for something else.
        solver = Newton(self.steps)
        solver._lost_trace = lost_trace
        return solver

    def _solve(self, ring: Ring, cov: Tensor, trace: Tensor) -> Tensor:
        identity = _identity(cov)
        if self.steps == 0:
            return identity * trace.rsqrt()
        y, z = _start(cov, trace, identity), None
        # 1.5·I - y/2
        t = torch.lerp(y, identity, 1.5)
        for _ in range(1, self.steps):
            z = t if z is None else torch.bmm(t, z, out=ring(t))
            y = torch.bmm(y, t, out=ring(t))
            t = torch.baddbmm(identity, z, y, beta=1.5, alpha=-0.5, out=ring(t))
        z = t if z is None else torch.bmm(t, z, out=ring(t))
        return z * trace.rsqrt()

    def _pull_back(
        self, ring: Ring, pairs: Ring, cov: Tensor, whitening: Tensor, trace: Tensor, grad: Tensor
    ) -> Tensor:
        identity = _identity(cov)
        if self.steps == 0:
            return identity * (-0.5 * (grad * whitening).sum((-2, -1), keepdim=True) / trace)
        start = _start(cov, trace, identity)
        # In two steps: the trace to the power of 3/2 leaves float32's range.
        half = _derivative(start, (grad + grad.mT) * (-0.125 * trace.rsqrt()), identity, self.steps, ring, pairs)
        derivative = half + half.mT
        products = torch.addcmul(derivative * start, grad, whitening, value=0.5)
        through_trace = products.sum((-2, -1), keepdim=True)
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


def _derivative(start: Tensor, ds: Tensor, identity: Tensor, steps: int, ring: Ring, pairs: Ring) -> Tensor:
    r"""The derivative of the last Z by the start, where the first S changes by ``ds``; both are symmetric.

    With :math:`U = Z^2 \Sigma_N`, which stays a function of itself, and :math:`S = \tfrac12 (3I - U)`, a step is
    :math:`U' = U S^2, Z' = Z S`, and so :math:`S' = \tfrac32 (I - S^2) + S^3`. As all are symmetric and commute, the
    derivative of S takes two products, of which one and its transpose are added up:

    .. math:: R = S\, dS, \qquad T = S\,(R + \tfrac12 R^T) - \tfrac32 R, \qquad dS' = T + T^T, \qquad
              dZ' = dZ\, S + Z\, dS

    from Z = I and dZ = 0. Only the symmetric part of the last dZ means anything. Z and dZ, one above the other, are
    multiplied by S in one product.
    """
    if steps == 1:
        return ds
    size = start.shape[-1]
    u, s = start, torch.lerp(start, identity, 1.5)
    z_dz = torch.cat((s, ds), -2)
    for step in range(1, steps):
        r = torch.bmm(s, ds, out=ring(s))
        t = r.baddbmm_(s, torch.add(r, r.mT, alpha=0.5, out=ring(s)), beta=-1.5)
        ds = torch.add(t, t.mT, out=ring(s))
        u = torch.bmm(torch.bmm(u, s, out=ring(s)), s, out=ring(s))
        s = torch.lerp(u, identity, 1.5, out=ring(s))
        z, dz = z_dz[:, :size], z_dz[:, size:]
        if step < steps - 1:
            z_dz = torch.bmm(z_dz, s, out=pairs(z_dz))
            _add_product(z_dz[:, size:], z, ds, ring)
    return torch.bmm(dz, s, out=ring(s)).baddbmm_(z, ds)


def _add_product(matrix: Tensor, a: Tensor, b: Tensor, ring: Ring) -> None:
    """matrix ← matrix + a·b."""
    if matrix.device.type == "cpu":
        # Into a part of a tensor, a product would be added one matrix at a time.
        matrix.add_(torch.bmm(a, b, out=ring(b)))
    else:
        matrix.baddbmm_(a, b)
