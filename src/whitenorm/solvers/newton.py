"""Newton's iteration: the approximate whitening of IterNorm, by matrix products alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import may_write_in_place, smallest
from whitenorm.solvers.base import Solver

# On a CPU, batches of matrices are cut into chunks of this size, which stay in the cache through all steps.
_CHUNK_BYTES = 2**19
# Smaller results are allocated anew: it takes less time than looking for a buffer.
_BUFFER_BYTES = 2**17


class Newton(Solver):
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

    def __init__(self, steps: int = 5) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"expected steps to be a whole number of at least 0 (got {steps!r}); the paper uses 5")
        self.steps = steps

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        matrices = cov.reshape(-1, *cov.shape[-2:])
        trace = self._trace(matrices)
        if _fits_cache(matrices):
            return self._solve(torch, matrices, trace).reshape(cov.shape), (trace,)
        ops, length = _BufferedOps(), _chunk_length(matrices)
        chunks = zip(matrices.split(length), trace.split(length), strict=True)
        return torch.cat([self._solve(ops, *chunk) for chunk in chunks]).reshape(cov.shape), (trace,)

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        shape = (-1, *cov.shape[-2:])
        matrices = grad.reshape(shape), cov.reshape(shape), whitening.reshape(shape)
        # Other backends return no residuals.
        trace = residuals[0] if residuals else self._trace(matrices[1])
        if _fits_cache(matrices[1]):
            return self._backward(torch, *matrices, trace).reshape(cov.shape)
        ops, length = _BufferedOps(), _chunk_length(matrices[1])
        chunks = zip(*[tensor.split(length) for tensor in (*matrices, trace)], strict=True)
        return torch.cat([self._backward(ops, *chunk) for chunk in chunks]).reshape(cov.shape)

    def reduce(self, lost_trace: float) -> Solver | None:
        if type(self) is not Newton:
            return None  # A subclass may solve for something else.
        solver = Newton(self.steps)
        solver._lost_trace = lost_trace
        return solver

    def _solve(self, ops: Any, cov: Tensor, trace: Tensor) -> Tensor:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        if self.steps == 0:
            return identity * trace.rsqrt()
        y, z = _normalize(cov, trace, identity), None
        t = torch.lerp(y, identity, 1.5)  # (3I - Y) / 2
        for _ in range(1, self.steps):
            z = t if z is None else ops.bmm(t, z)
            y = ops.bmm(y, t)
            t = ops.baddbmm(identity, z, y, beta=1.5, alpha=-0.5)
        z = t if z is None else ops.bmm(t, z)
        return z * trace.rsqrt()

    def _backward(self, ops: Any, grad: Tensor, cov: Tensor, whitening: Tensor, trace: Tensor) -> Tensor:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        if self.steps == 0:
            return identity * (-0.5 * (grad * whitening).sum((-2, -1), keepdim=True) / trace)
        start = _normalize(cov, trace, identity)
        # Divided by the trace to the power 1/2 here and 1 below: to the power 3/2 it leaves float32's range.
        half = _differentiate(ops, start, (grad + grad.mT) * (-0.125 * trace.rsqrt()), identity, self.steps)
        derivative = half + half.mT
        products = torch.addcmul(derivative * start, grad, whitening, value=0.5)
        through_trace = products.sum((-2, -1), keepdim=True)
        return torch.addcmul(derivative, through_trace, identity, value=-1) / trace

    def _trace(self, cov: Tensor) -> Tensor:
        """Return the traces as ``(B, 1, 1)``."""
        trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return (trace + self._lost_trace if self._lost_trace else trace).clamp_min(smallest(cov.dtype))


class _BufferedOps:
    """Functions of torch that write their results into a few buffers in turn, which are overwritten when all are used.

    On a CPU, fresh memory costs more than the arithmetic on matrices that fit the cache.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}

    def _buffer(self, rows: Tensor, columns: Tensor) -> Tensor | None:
        if rows.nbytes < _BUFFER_BYTES:
            return None
        shape = (*rows.shape[:-1], columns.shape[-1])
        buffers = self._buffers.setdefault(shape, [])
        # A step of the iteration has seven square results, each last needed in the next step, and one of Z and dZ.
        if len(buffers) < (8 if shape[-1] == shape[-2] else 2):
            buffers.append(rows.new_empty(shape))
        else:
            buffers.append(buffers.pop(0))
        return buffers[-1]

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self._buffer(a, b))

    def baddbmm(self, start: Tensor, a: Tensor, b: Tensor, *, beta: float, alpha: float) -> Tensor:
        return torch.baddbmm(start, a, b, beta=beta, alpha=alpha, out=self._buffer(a, b))

    def add(self, a: Tensor, b: Tensor, *, alpha: float = 1) -> Tensor:
        return torch.add(a, b, alpha=alpha, out=self._buffer(a, a))

    def lerp(self, a: Tensor, b: Tensor, weight: float) -> Tensor:
        return torch.lerp(a, b, weight, out=self._buffer(a, a))


def _fits_cache(matrices: Tensor) -> bool:
    """Return whether a batch is solved in one piece: on GPUs and under transforms always, on CPUs if it is small."""
    return not may_write_in_place() or matrices.device.type != "cpu" or matrices.nbytes <= _CHUNK_BYTES


def _chunk_length(matrices: Tensor) -> int:
    return max(1, len(matrices) * _CHUNK_BYTES // matrices.nbytes)


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
