"""Products of matrices that lie in memory of a program's own.

A solve needs several K×K matrices at once, and the operands of exact products take many registers: kept in them, they
would spill. Here a product is made of a few columns of one matrix and rows of the other at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import BLOCK_COLUMNS, block_features

# Programs that solve at most, each for one matrix after the other: what bounds the memory.
MOST_PROGRAMS = 512
_COLUMNS = tl.constexpr(BLOCK_COLUMNS)


def scratch(like: Tensor, matrices: int, features: int, slots: int) -> tuple[int, Tensor]:
    """How many programs solve so many matrices, and room for some matrices of each."""
    programs = min(matrices, MOST_PROGRAMS)
    block = block_features(features)
    return programs, like.new_empty((programs, slots, block, block), dtype=torch.float32)


@triton.jit
def put(slot, values, BLOCK_K: tl.constexpr):
    """Write a matrix, once nobody reads the last one any more, for all to read."""
    k = tl.arange(0, BLOCK_K)
    tl.debug_barrier()
    tl.store(slot + k[:, None] * BLOCK_K + k[None, :], values)
    tl.debug_barrier()


@triton.jit
def get(slot, BLOCK_K: tl.constexpr):
    k = tl.arange(0, BLOCK_K)
    return tl.load(slot + k[:, None] * BLOCK_K + k[None, :])


@triton.jit
def transposed(slot, BLOCK_K: tl.constexpr):
    k = tl.arange(0, BLOCK_K)
    return tl.load(slot + k[None, :] * BLOCK_K + k[:, None])


@triton.jit
def times(left, right, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """total + left @ right."""
    k = tl.arange(0, BLOCK_K)
    for first in range(0, BLOCK_K, _COLUMNS):
        some = first + tl.arange(0, _COLUMNS)
        columns = tl.load(left + k[:, None] * BLOCK_K + some[None, :])
        rows = tl.load(right + some[:, None] * BLOCK_K + k[None, :])
        total = tl.dot(columns, rows, total, input_precision=PRECISION)
    return total


@triton.jit
def times_symmetric(left, right, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """total + left @ (right + rightᵀ)."""
    k = tl.arange(0, BLOCK_K)
    for first in range(0, BLOCK_K, _COLUMNS):
        some = first + tl.arange(0, _COLUMNS)
        columns = tl.load(left + k[:, None] * BLOCK_K + some[None, :])
        rows = tl.load(right + some[:, None] * BLOCK_K + k[None, :])
        rows += tl.load(right + k[None, :] * BLOCK_K + some[:, None])
        total = tl.dot(columns, rows, total, input_precision=PRECISION)
    return total
