"""Messages between ranks: a kernel that packs triangles before a collective, and one that unpacks them after it."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import load_scalar
from whitenorm.ops.triton.tiling import launch, next_power_of_2
from whitenorm.ops.types import AffineGrad, Moments


def pack_moments(local: Moments) -> Tensor:
    """Return the number of values, and the sums of x and x·xᵀ; see :class:`MessageKernels`."""
    message = _new_message(local.mean, torch.float64)
    launch(
        _pack_moments,
        (local.mean.numel(),),
        message,
        local.mean.contiguous(),
        local.cov.contiguous(),
        local.num_values,
        message,
        **_arguments(local.mean),
        COUNT_IS_TENSOR=isinstance(local.num_values, Tensor),
    )
    return message


def unpack_moments(message: Tensor, local: Moments) -> Moments:
    """Return the moments of a message summed over the ranks."""
    mean, cov = torch.empty_like(local.mean), torch.empty_like(local.cov)
    count = mean.new_empty(())
    launch(_unpack_moments, (mean.numel(),), message, message, mean, cov, count, **_arguments(mean))
    return Moments(mean, cov, count)


def pack_gradient(local: AffineGrad) -> Tensor:
    """Return the gradients of the covariance and of the mean, and the number of values."""
    message = _new_message(local.offset, torch.float32)
    launch(
        _pack_gradient,
        (local.offset.numel(),),
        message,
        local.matrix.contiguous(),
        local.offset.contiguous(),
        local.num_values,
        message,
        **_arguments(local.offset),
        COUNT_IS_TENSOR=isinstance(local.num_values, Tensor),
    )
    return message


def unpack_gradient(message: Tensor, local: AffineGrad) -> AffineGrad:
    """Return the gradient of a message summed over the ranks."""
    matrix, offset = torch.empty_like(local.matrix), torch.empty_like(local.offset)
    count = offset.new_empty(())
    launch(_unpack_gradient, (offset.numel(),), message, message, matrix, offset, count, **_arguments(offset))
    return AffineGrad(matrix, offset, local.mean, count)


def _new_message(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor for the vectors ``(1, G, K)``, the triangles of as many rows, and a number."""
    triangles = vectors.numel() * (vectors.shape[-1] + 1) // 2
    return vectors.new_empty(1 + vectors.numel() + triangles, dtype=dtype)


def _arguments(vectors: Tensor) -> dict[str, Any]:
    features = vectors.shape[-1]
    return {"groups": vectors.numel() // features, "features": features, "BLOCK_K": next_power_of_2(features)}


@triton.jit
def _entry(row, column, features):
    """Return the index of an entry of a symmetric matrix in its upper triangle, which is stored row by row."""
    first, second = tl.minimum(row, column), tl.maximum(row, column)
    return first * features - first * (first - 1) // 2 + second - first


@triton.jit(do_not_specialize=["count", "groups", "features"])
def _pack_moments(mean, cov, count, message, groups, features, BLOCK_K: tl.constexpr, COUNT_IS_TENSOR: tl.constexpr):
    """Write one row of the sums of x·xᵀ, and one entry of the sums of x.

    Grid: (G · K,). A program reads a row of a covariance, and the mean of its group. The message is the number of
    values, the sums ``(G, K)`` and the triangles ``(G, K(K + 1)/2)``.
    """
    group, row = tl.program_id(0) // features, tl.program_id(0) % features
    k = tl.arange(0, BLOCK_K)
    number = tl.cast(load_scalar(count, COUNT_IS_TENSOR), tl.float64)
    centre = tl.load(mean + tl.program_id(0)).to(tl.float64)
    others = tl.load(mean + group * features + k, mask=k < features, other=0.0).to(tl.float64)
    entries = tl.load(cov + tl.program_id(0).to(tl.int64) * features + k, mask=k < features, other=0.0).to(tl.float64)
    if tl.program_id(0) == 0:
        tl.store(message, number)
    tl.store(message + 1 + tl.program_id(0), centre * number)
    triangle = message + 1 + groups * features + group * (features * (features + 1) // 2)
    upper = (k >= row) & (k < features)
    tl.store(triangle + _entry(row, k, features), (entries + centre * others) * number, mask=upper)


@triton.jit(do_not_specialize=["groups", "features"])
def _unpack_moments(message, mean, cov, count, groups, features, BLOCK_K: tl.constexpr):
    """Compute one row of a covariance, and one entry of a mean.

    Grid: (G · K,). A program reads the number of values, the sums of x of its group and a row of those of x·xᵀ.
    """
    group, row = tl.program_id(0) // features, tl.program_id(0) % features
    k = tl.arange(0, BLOCK_K)
    total = tl.load(message)
    number = tl.maximum(total, 1.0)
    centre = tl.load(message + 1 + tl.program_id(0)) / number
    others = tl.load(message + 1 + group * features + k, mask=k < features, other=0.0) / number
    triangle = message + 1 + groups * features + group * (features * (features + 1) // 2)
    second = tl.load(triangle + _entry(row, k, features), mask=k < features, other=0.0) / number
    if tl.program_id(0) == 0:
        tl.store(count, total.to(tl.float32))
    tl.store(mean + tl.program_id(0), centre.to(tl.float32))
    entries = (second - centre * others).to(tl.float32)
    tl.store(cov + tl.program_id(0).to(tl.int64) * features + k, entries, mask=k < features)


@triton.jit(do_not_specialize=["count", "groups", "features"])
def _pack_gradient(
    matrix, offset, count, message, groups, features, BLOCK_K: tl.constexpr, COUNT_IS_TENSOR: tl.constexpr
):
    """Write one row of the gradient of a covariance, and one entry of that of a mean.

    Grid: (G · K,). The message is the triangles ``(G, K(K + 1)/2)``, the offsets ``(G, K)`` and the number of values.
    """
    group, row = tl.program_id(0) // features, tl.program_id(0) % features
    k = tl.arange(0, BLOCK_K)
    size = features * (features + 1) // 2
    entries = tl.load(matrix + tl.program_id(0).to(tl.int64) * features + k, mask=k < features, other=0.0)
    tl.store(message + group * size + _entry(row, k, features), entries, mask=(k >= row) & (k < features))
    vectors = message + groups * size
    tl.store(vectors + tl.program_id(0), tl.load(offset + tl.program_id(0)))
    if tl.program_id(0) == 0:
        tl.store(vectors + groups * features, tl.cast(load_scalar(count, COUNT_IS_TENSOR), tl.float32))


@triton.jit(do_not_specialize=["groups", "features"])
def _unpack_gradient(message, matrix, offset, count, groups, features, BLOCK_K: tl.constexpr):
    """Read one row of the gradient of a covariance, and one entry of that of a mean.

    Grid: (G · K,).
    """
    group, row = tl.program_id(0) // features, tl.program_id(0) % features
    k = tl.arange(0, BLOCK_K)
    size = features * (features + 1) // 2
    entries = tl.load(message + group * size + _entry(row, k, features), mask=k < features, other=0.0)
    tl.store(matrix + tl.program_id(0).to(tl.int64) * features + k, entries, mask=k < features)
    vectors = message + groups * size
    tl.store(offset + tl.program_id(0), tl.load(vectors + tl.program_id(0)))
    if tl.program_id(0) == 0:
        tl.store(count, tl.maximum(tl.load(vectors + groups * features), 1.0))
