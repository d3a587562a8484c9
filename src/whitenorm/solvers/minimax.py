"""Composed minimax polynomials: exact whitening by matrix products alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.solvers.base import Solver, symmetric
from whitenorm.solvers.products import ProductSolver
from whitenorm.solvers.remez import Coefficients, evaluate, widest_composition

# Polynomials and the lower end of their interval by number of steps. A dict, because compilers trace into cached
# functions.
_COMPOSITIONS: dict[int, tuple[tuple[Coefficients, ...], float]] = {}
# The least error that is promised, above the rounding errors of its own evaluation.
_ROUNDING = 2.0**-50
# Ridge in units of the dtype's precision.
_RIDGE = 32


class _Step(NamedTuple):
    """The matrices of a step, Z being None where it is I, and the ridge that Y has lost in this step."""

    y: Tensor
    z: Tensor | None
    m: Tensor
    t: Tensor
    lost: float


class Minimax(ProductSolver):
    r"""Exact symmetric whitening by matrix products: the inverse square root as a composition of polynomials.

    .. math:: \Sigma_N = \Sigma / \lVert\Sigma\rVert_F, \qquad Y_0 = \Sigma_N, \; Z_0 = I, \qquad
              M_k = Z_k Y_k, \qquad T_k = a_k I + b_k M_k + c_k M_k^2,

    .. math:: Y_{k+1} = Y_k T_k, \qquad Z_{k+1} = T_k Z_k, \qquad W = Z_T / \sqrt{\lVert\Sigma\rVert_F}

    With x the square root of an eigenvalue of :math:`\Sigma_N`, a step maps x to :math:`a_k x + b_k x^3 + c_k x^5`. The
    polynomials are those whose composition is closest to 1 on an interval [l, 1], with the smallest l for which its
    error is below float64's rounding errors (`Polar Express <https://arxiv.org/abs/2505.16932>`_; the coupled form is
    Newton's). Remez's algorithm computes them when a number of steps is first used.

    In contrast to :class:`ZCA` it needs no eigendecomposition, and in contrast to :class:`Newton` it whitens all
    directions fully as long as the condition number is at most :math:`l^{-2} / \sqrt K`: 2e5 / √K for 7 steps, and 18
    times as much with each further step. Directions of less variance keep a variance between 0 and 1.
    :meth:`largest_error` returns the accuracy for a condition number. More steps than a condition number needs cost
    accuracy, because rounding errors are about u / l at least.

    Gradients pass through the norm. They are computed back through the iterates, which are computed again: only the
    covariance, W and the norm are saved. (Newton's forward derivative would be inaccurate along large eigenvalues,
    because the slopes of the first polynomials, which the last ones undo, are steep there.)

    Args:
        steps: number of polynomials. A solve takes 4·steps - 3 products.

    Example::

        >>> cov = torch.diag(torch.tensor([1.0, 4.0]))
        >>> Minimax().solve(cov)[0].diagonal()
        tensor([1.0000, 0.5000])
    """

    _lost_norm = 0.0
    # A step of the gradient has eleven results, each last needed in the next step.
    _square_buffers = 14

    def __init__(self, steps: int = 7) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"expected steps to be a whole number of at least 1 (got {steps!r}); the default is 7")
        self.steps = steps
        if steps not in _COMPOSITIONS:
            _COMPOSITIONS[steps] = widest_composition(steps)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["steps"])  # type: ignore[misc]
        vars(self).update(state)

    @property
    def polynomials(self) -> tuple[Coefficients, ...]:
        """The coefficients (a, b, c) of each step."""
        return _COMPOSITIONS[self.steps][0]

    def largest_error(self, condition: float, features: int) -> float:
        r"""Return the largest deviation of a whitened variance from 1, in exact arithmetic.

        It holds for every covariance of ``features`` features with at most this condition number. Rounding errors of
        about u·(√K·condition + 1 / l) come on top; u is 6e-8 for float32 and 1e-16 for float64, l is 2e-3 for 7 steps.

        Example::

            >>> [f"{Minimax(7).largest_error(condition, 64):.0e}" for condition in (1e4, 1e5, 1e6)]
            ['9e-16', '1e-03', '5e-01']
        """
        lower = _COMPOSITIONS[self.steps][1]
        # The norm is at most √K times the largest eigenvalue. Below its interval, the composition increases.
        x = min(lower, (condition * math.sqrt(features)) ** -0.5)
        for polynomial in self.polynomials:
            x = evaluate(polynomial, x)
        return max(abs(1 - x * x), _ROUNDING)

    def reduce(self, eigenvalue: float, multiplicity: int) -> Solver | None:
        if type(self) is not Minimax:
            return None  # A subclass may solve for something else.
        solver = Minimax(self.steps)
        solver._lost_norm = eigenvalue * math.sqrt(multiplicity)
        return solver

    def _scale(self, cov: Tensor) -> Tensor:
        """Return the Frobenius norms as ``(B, 1, 1)``."""
        # Divided by the largest variance first, because squares of large covariances would overflow.
        largest = cov.detach().diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None].clamp_min(smallest(cov.dtype))
        norm = largest * torch.linalg.matrix_norm(cov / largest, keepdim=True)
        if self._lost_norm:
            norm = torch.hypot(norm, torch.full_like(norm, self._lost_norm))
        return norm.clamp_min(self._floor(cov.dtype))

    def _floor(self, dtype: torch.dtype) -> float:
        """Return the floor of norms, at which the least eigenvalue that counts is the smallest of all."""
        return smallest(dtype) / max(_COMPOSITIONS[self.steps][1] ** 2, torch.finfo(dtype).eps)

    def _solve(self, ops: Any, cov: Tensor, scale: Tensor) -> Tensor:
        last = self._iterate(ops, cov / scale)[-1]
        z = last.t if last.z is None else ops.bmm(last.t, last.z)
        return z * scale.rsqrt()

    def _backward(self, ops: Any, grad: Tensor, cov: Tensor, whitening: Tensor, scale: Tensor) -> Tensor:
        start = cov / scale
        # Divided by the norm to the power 1/2 here and 1 below: to the power 3/2 it leaves float32's range.
        direction = symmetric(grad) * scale.rsqrt()
        derivative = symmetric(_run_back(ops, self._iterate(torch, start, keep=True), self.polynomials, direction))
        products = torch.addcmul(derivative * start, grad, whitening, value=0.5)
        through_norm = products.sum((-2, -1), keepdim=True) * (scale > self._floor(cov.dtype))
        return torch.addcmul(derivative, through_norm, start, value=-1) / scale

    def _iterate(self, ops: Any, start: Tensor, keep: bool = False) -> list[_Step]:
        """Return the last step, or all of them."""
        steps: list[_Step] = []
        identity = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device)
        # Y = (Σ + rI)Z until the last two steps. The ridge r lifts eigenvalues that rounding has made negative, along
        # which the iteration would diverge. Y - rZ continues without it, so that W is that of the covariance itself.
        ridge = _RIDGE * torch.finfo(start.dtype).eps if self.steps > 2 else 0.0
        y, z = torch.add(start, identity, alpha=ridge), None
        for number, (a, b, c) in enumerate(self.polynomials):
            lost = ridge if z is not None and number == self.steps - 2 else 0.0
            y = ops.add(y, z, alpha=-lost) if lost else y
            m = y if z is None else ops.bmm(z, y)
            t = ops.add(ops.baddbmm(m, m, m, beta=b, alpha=c), identity, alpha=a)
            steps = [*(steps if keep else []), _Step(y, z, m, t, lost)]
            if number < self.steps - 1:
                z = t if z is None else ops.bmm(t, z)
                y = ops.bmm(y, t)
        return steps


def _run_back(ops: Any, steps: list[_Step], polynomials: tuple[Coefficients, ...], grad_z: Tensor) -> Tensor:
    """Return the gradient of the first Y from that of the last Z. All matrices are symmetric."""
    grad_y = None
    for (y, z, m, t, lost), (_, b, c) in zip(reversed(steps), reversed(polynomials), strict=True):
        grad_t = grad_z if z is None else ops.bmm(grad_z, z)
        if grad_y is not None:
            grad_t, grad_y = ops.baddbmm(grad_t, y, grad_y), ops.bmm(grad_y, t)
        grad_t = ops.lerp(grad_t, grad_t.mT, 0.5)
        half = ops.baddbmm(grad_t, m, grad_t, beta=b, alpha=2 * c)
        grad_m = ops.lerp(half, half.mT, 0.5)
        if z is None:
            return grad_m if grad_y is None else grad_m + grad_y
        grad_z = ops.baddbmm(ops.bmm(t, grad_z), grad_m, y)
        grad_y = ops.bmm(z, grad_m) if grad_y is None else ops.baddbmm(grad_y, z, grad_m)
        if lost:
            grad_z = ops.add(grad_z, grad_y, alpha=-lost)
    raise AssertionError
