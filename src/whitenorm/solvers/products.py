"""Solvers that iterate by matrix products: batches in pieces that fit the cache of a CPU, and buffers for results."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import may_write_in_place
from whitenorm.solvers.base import Solver

# On a CPU, batches of matrices are cut into chunks of this size, which stay in the cache through all steps.
_CHUNK_BYTES = 2**19
# Smaller results are allocated anew: it takes less time than looking for a buffer.
_BUFFER_BYTES = 2**17


class ProductSolver(Solver):
    """A solver for covariances divided by a ``scale``, such as their trace, whose only residual is that scale.

    A subclass solves for a batch ``(B, K, K)`` with scales ``(B, 1, 1)``. It calls ``ops.bmm`` and the like, where
    ``ops`` is torch or has the same functions with buffers. A square result is overwritten when ``_square_buffers``
    others have been computed, a result of another shape with the second after it.
    """

    _square_buffers: int

    @abstractmethod
    def _scale(self, cov: Tensor) -> Tensor: ...

    @abstractmethod
    def _solve(self, ops: Any, cov: Tensor, scale: Tensor) -> Tensor: ...

    @abstractmethod
    def _backward(self, ops: Any, grad: Tensor, cov: Tensor, whitening: Tensor, scale: Tensor) -> Tensor: ...

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        matrices = cov.reshape(-1, *cov.shape[-2:])
        scale = self._scale(matrices)
        if _fits_cache(matrices):
            return self._solve(torch, matrices, scale).reshape(cov.shape), (scale,)
        ops, length = BufferedOps(self._square_buffers), _chunk_length(matrices)
        chunks = zip(matrices.split(length), scale.split(length), strict=True)
        return torch.cat([self._solve(ops, *chunk) for chunk in chunks]).reshape(cov.shape), (scale,)

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        shape = (-1, *cov.shape[-2:])
        matrices = grad.reshape(shape), cov.reshape(shape), whitening.reshape(shape)
        # Other backends return no residuals.
        scale = residuals[0] if residuals else self._scale(matrices[1])
        if _fits_cache(matrices[1]):
            return self._backward(torch, *matrices, scale).reshape(cov.shape)
        ops, length = BufferedOps(self._square_buffers), _chunk_length(matrices[1])
        chunks = zip(*[tensor.split(length) for tensor in (*matrices, scale)], strict=True)
        return torch.cat([self._backward(ops, *chunk) for chunk in chunks]).reshape(cov.shape)


class BufferedOps:
    """Functions of torch that write their results into a few buffers in turn, which are overwritten when all are used.

    On a CPU, fresh memory costs more than the arithmetic on matrices that fit the cache.
    """

    def __init__(self, square_buffers: int) -> None:
        self._square_buffers = square_buffers
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}

    def _buffer(self, rows: Tensor, columns: Tensor) -> Tensor | None:
        if rows.nbytes < _BUFFER_BYTES:
            return None
        shape = (*rows.shape[:-1], columns.shape[-1])
        buffers = self._buffers.setdefault(shape, [])
        if len(buffers) < (self._square_buffers if shape[-1] == shape[-2] else 2):
            buffers.append(rows.new_empty(shape))
        else:
            buffers.append(buffers.pop(0))
        return buffers[-1]

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self._buffer(a, b))

    def baddbmm(self, start: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
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
