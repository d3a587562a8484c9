"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.solvers.base import Pullback, Solver, by_chunks, rounding, smallest, symmetric, trace


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

    Gradients pass through the trace. The iterates are not kept for backward, but computed again.

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
        return by_chunks(self._solve, cov), ()

    def keep(self, cov: Tensor, whitening: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return cov, whitening

    def vjp(self, *kept: Tensor) -> tuple[Tensor, Pullback]:
        cov, whitening = kept
        return whitening, lambda grad: by_chunks(self._pull_back, cov, whitening, grad)

    def _solve(self, cov: Tensor) -> Tensor:
        root_trace, _, y = _normalised(cov)
        z = _identity(y)
        for k in range(self.steps):
            t = _step(y, z, first=k == 0)
            z = t if k == 0 else torch.bmm(t, z)
            if k < self.steps - 1:
                y = torch.bmm(y, t)
        return z / root_trace

    def _pull_back(self, cov: Tensor, whitening: Tensor, grad: Tensor) -> Tensor:
        root_trace, scaled, y = _normalised(cov)
        ys, zs, ts = [y], [_identity(y)], []
        for k in range(self.steps):
            ts.append(_step(ys[k], zs[k], first=k == 0))
            if k < self.steps - 1:
                zs.append(ts[k] if k == 0 else torch.bmm(ts[k], zs[k]))
                ys.append(torch.bmm(ys[k], ts[k]))
        grad_scaled = _backward_steps(ys, zs, ts, grad / root_trace)
        through_trace = _inner(grad_scaled, scaled) + _inner(grad, whitening) / 2
        return (grad_scaled - through_trace * _identity(y)) / root_trace**2


def _normalised(cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """√tr Σ, Σ/tr Σ, and where the iteration starts.

    The start has a ridge of rounding error's size: on an eigenvalue that rounding has made negative, the iteration
    would leave for infinity.
    """
    tr = trace(cov).clamp_min(smallest(cov.dtype))
    scaled = cov / tr
    return tr.sqrt(), scaled, scaled + rounding(scaled) * _identity(cov)


def _identity(cov: Tensor) -> Tensor:
    return torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """tr(aᵀb) of each pair, as ``(..., 1, 1)``."""
    return (a * b).sum((-2, -1), keepdim=True)


def _step(y: Tensor, z: Tensor, first: bool) -> Tensor:
    """T = (3I - Z·Y) / 2; the first Z is the identity."""
    if first:
        return 1.5 * _identity(y) - y / 2
    return torch.baddbmm(_identity(y), z, y, beta=1.5, alpha=-0.5)


def _backward_steps(ys: list[Tensor], zs: list[Tensor], ts: list[Tensor], grad_z: Tensor) -> Tensor:
    """The gradient of the last Z taken back to the first Y, the trace-normalised covariance.

    The iterates are symmetric, so no product needs a transposed operand. The gradients between steps are not, and
    must stay so: replacing them by their symmetric part, though it changes no sum, makes the recursion unstable.
    """
    # The last step has no gradient of Y yet, and before the first one Z is the identity, which asks for none.
    last = len(ts) - 1
    grad_y = torch.zeros_like(grad_z)
    for k in range(last, -1, -1):
        grad_t = grad_z if k == 0 else torch.bmm(grad_z, zs[k])
        if k < last:
            grad_t = torch.baddbmm(grad_t, ys[k], grad_y)
        if k > 0:
            grad_z = torch.baddbmm(torch.bmm(ts[k], grad_z), grad_t, ys[k], alpha=-0.5)
        through_t = grad_t if k == 0 else torch.bmm(zs[k], grad_t)
        grad_y = torch.add(torch.bmm(grad_y, ts[k]), through_t, alpha=-0.5) if k < last else -0.5 * through_t
    return symmetric(grad_y)
