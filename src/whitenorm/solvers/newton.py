"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.solvers.base import Pullback, Solver, smallest, symmetric, trace


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

    Gradients pass through the trace. Only the covariance is kept for backward; the iterates are computed again.

    Example::

        >>> cov = torch.diag(torch.tensor([1.0, 4.0]))
        >>> Newton(steps=10).solve(cov)[0].diagonal()
        tensor([1.0000, 0.5000])
    """

    def __init__(self, steps: int = 5) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"expected steps to be a whole number of at least 0 (got {steps!r}); the paper uses 5")
        self.steps = steps

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        tr = trace(cov).clamp_min(smallest(cov.dtype))
        z, y = _identity(cov), cov / tr
        for k in range(self.steps):
            t = _step(y, z, first=k == 0)
            z = t if k == 0 else t @ z
            if k < self.steps - 1:
                y = y @ t
        return z * tr.rsqrt(), ()

    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (cov,)

    def vjp(self, *kept: Tensor) -> tuple[Tensor, Pullback]:
        (cov,) = kept
        tr = trace(cov).clamp_min(smallest(cov.dtype))
        scaled = cov / tr
        ys, zs, ts = [scaled], [_identity(cov)], []
        for k in range(self.steps):
            t = _step(ys[k], zs[k], first=k == 0)
            ts.append(t)
            zs.append(t if k == 0 else t @ zs[k])
            if k < self.steps - 1:
                ys.append(ys[k] @ t)
        whitening = zs[-1] * tr.rsqrt()

        def pullback(grad: Tensor) -> Tensor:
            grad = symmetric(grad)
            grad_scaled = _backward_steps(ys, zs, ts, grad * tr.rsqrt())
            through_trace = trace(grad_scaled @ scaled) + trace(grad @ whitening) / 2
            return (grad_scaled - through_trace * _identity(cov)) / tr

        return whitening, pullback


def _identity(cov: Tensor) -> Tensor:
    return torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)


def _step(y: Tensor, z: Tensor, first: bool) -> Tensor:
    """T = (3I - Z·Y) / 2; the first Z is the identity."""
    return 1.5 * _identity(y) - (y if first else z @ y) / 2


def _backward_steps(ys: list[Tensor], zs: list[Tensor], ts: list[Tensor], grad_z: Tensor) -> Tensor:
    """The gradient of the last Z taken back to the first Y, the trace-normalised covariance.

    The iterates are symmetric, so no product needs a transposed operand. The gradients between steps are not, and
    must stay so: replacing them by their symmetric part, though it changes no sum, makes the recursion unstable.
    """
    grad_y = torch.zeros_like(grad_z)
    for k in reversed(range(len(ts))):
        grad_t = grad_z @ zs[k] + ys[k] @ grad_y
        grad_z = ts[k] @ grad_z - grad_t @ ys[k] / 2
        grad_y = grad_y @ ts[k] - zs[k] @ grad_t / 2
    return symmetric(grad_y)
