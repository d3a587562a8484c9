"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.solvers.base import Solver
from whitenorm.solvers.products import ProductSolver


class Newton(ProductSolver):
    r"""Whitening by ``steps`` Newton iterations on the trace-normalized covariance (IterNorm, algorithm 1).

    .. math:: \Sigma_N = \Sigma / \operatorname{tr}\Sigma, \qquad P_0 = I, \qquad
              P_k = \tfrac12 (3 P_{k-1} - P_{k-1}^3 \Sigma_N), \qquad W = P_T / \sqrt{\operatorname{tr}\Sigma}

    The iterates are computed in the coupled form: with :math:`Y_0 = \Sigma_N`, :math:`Z_0 = I`,

    .. math:: T_k = \tfrac12 (3I - Z_k Y_k), \qquad Y_{k+1} = Y_k T_k, \qquad Z_{k+1} = T_k Z_k,

    which gives the same :math:`P_k = Z_k` but does not amplify rounding errors, so any number of steps and any
    condition number are safe. At the paper's five steps the result is *not* :math:`\Sigma^{-1/2}` along
    directions whose share of the trace is small: their variance stays below one, by design. With
    ``steps=0`` it only scales.

    Gradients pass through the trace. W is a polynomial of a symmetric matrix, so its derivative is self-adjoint, and
    the gradient of the covariance is the *forward* derivative of W in the direction of the gradient of W. It is
    computed alongside the iteration, so only the covariance and W are saved.

    Example::

        >>> cov = torch.diag(torch.tensor([1.0, 4.0]))
        >>> Newton(steps=10).solve(cov)[0].diagonal()
        tensor([1.0000, 0.5000])
    """

    _lost_trace = 0.0
    # A step of the derivative has seven square results, each last needed in the next step.
    _square_buffers = 8

    def __init__(self, steps: int = 5) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"expected steps to be a whole number of at least 0 (got {steps!r}); the paper uses 5")
        self.steps = steps

    def reduce(self, eigenvalue: float, multiplicity: int) -> Solver | None:
        if type(self) is not Newton:
            return None  # A subclass may solve for something else.
        solver = Newton(self.steps)
        solver._lost_trace = eigenvalue * multiplicity
        return solver

    def _scale(self, cov: Tensor) -> Tensor:
        """Return the traces as ``(B, 1, 1)``."""
        trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return (trace + self._lost_trace if self._lost_trace else trace).clamp_min(smallest(cov.dtype))

    def _solve(self, ops: Any, cov: Tensor, scale: Tensor) -> Tensor:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        if self.steps == 0:
            return identity * scale.rsqrt()
        y, z = _normalize(cov, scale, identity), None
        t = torch.lerp(y, identity, 1.5)  # (3I - Y) / 2
        for _ in range(1, self.steps):
            z = t if z is None else ops.bmm(t, z)
            y = ops.bmm(y, t)
            t = ops.baddbmm(identity, z, y, beta=1.5, alpha=-0.5)
        z = t if z is None else ops.bmm(t, z)
        return z * scale.rsqrt()

    def _backward(self, ops: Any, grad: Tensor, cov: Tensor, whitening: Tensor, scale: Tensor) -> Tensor:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        if self.steps == 0:
            return identity * (-0.5 * (grad * whitening).sum((-2, -1), keepdim=True) / scale)
        start = _normalize(cov, scale, identity)
        # Divided by the trace to the power 1/2 here and 1 below: to the power 3/2 it leaves float32's range.
        half = _differentiate(ops, start, (grad + grad.mT) * (-0.125 * scale.rsqrt()), identity, self.steps)
        derivative = half + half.mT
        products = torch.addcmul(derivative * start, grad, whitening, value=0.5)
        through_trace = products.sum((-2, -1), keepdim=True)
        return torch.addcmul(derivative, through_trace, identity, value=-1) / scale


def _normalize(cov: Tensor, trace: Tensor, identity: Tensor) -> Tensor:
    """Return Σ/tr Σ plus a ridge of the size of the rounding error.

    Without the ridge, the iteration diverges along an eigenvalue that rounding has made negative.
    """
    normalized = cov / trace
    norm = torch.linalg.matrix_norm(normalized.detach(), keepdim=True)
    return torch.addcmul(normalized, norm, identity, value=2 * torch.finfo(cov.dtype).eps)


def _differentiate(ops: Any, start: Tensor, ds: Tensor, identity: Tensor, steps: int) -> Tensor:
    r"""Return half of the derivative of the last Z where the first S changes by ``ds``; both matrices are symmetric.

    With :math:`U = Z^2 \Sigma_N`, a function of itself, and :math:`S = \tfrac12 (3I - U)`, a step is
    :math:`U' = U S^2, Z' = Z S`, so that :math:`S' = \tfrac32 (I - S^2) + S^3`. All are symmetric and commute, so that
    the derivative of S takes two products:

    .. math:: R = S\, dS, \qquad T = S\,(R + \tfrac12 R^T) - \tfrac32 R, \qquad dS' = T + T^T, \qquad
              dZ' = dZ\, S + Z\, dS

    from Z = I and dZ = 0. The derivative is the sum of the result and its transpose. Z and dZ lie one above the other,
    and are multiplied by S in one product.
    """
    if steps == 1:
        return ds
    size = start.shape[-1]
    u, s = start, torch.lerp(start, identity, 1.5)
    z_dz = torch.cat((s, ds), -2)
    for step in range(1, steps):
        r = ops.bmm(s, ds)
        t = r.baddbmm_(s, ops.add(r, r.mT, alpha=0.5), beta=-1.5)
        ds = ops.add(t, t.mT)
        u = ops.bmm(ops.bmm(u, s), s)
        s = ops.lerp(u, identity, 1.5)
        z, dz = z_dz[:, :size], z_dz[:, size:]
        if step < steps - 1:
            z_dz = ops.bmm(z_dz, s)
            if z_dz.device.type == "cpu":
                # Where baddbmm_ into part of a tensor takes one matrix at a time.
                z_dz[:, size:].add_(ops.bmm(z, ds))
            else:
                z_dz[:, size:].baddbmm_(z, ds)
    return ops.bmm(dz, s).baddbmm_(z, ds)
