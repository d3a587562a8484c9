"""Products of matrices in scratch memory, of which each program has its own.

A solve needs several K×K matrices at once, and the operands of exact products take so many registers that they would
spill. A product therefore loads a few columns of one matrix and rows of the other at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiling import BLOCK_COLUMNS, block_features

# Most programs of a solve, which bounds the scratch memory; each solves one matrix after the other.
MOST_PROGRAMS = 512
_COLUMNS = tl.constexpr(BLOCK_COLUMNS)


def allocate_scratch(like: Tensor, matrices: int, features: int, slots: int) -> tuple[int, Tensor]:
    """Return the number of programs to solve for ``matrices``, and memory for ``slots`` matrices of each program."""
    programs = min(matrices, MOST_PROGRAMS)
    block = block_features(features)
    return programs, like.new_empty((programs, slots, block, block), dtype=torch.float32)


@triton.jit
def store_slot(slot, values, BLOCK_K: tl.constexpr):
    """Write a matrix after all threads have read the previous one, and before any reads this one."""
    k = tl.arange(0, BLOCK_K)
    tl.debug_barrier()
    tl.store(slot + k[:, None] * BLOCK_K + k[None, :], values)
    tl.debug_barrier()


@triton.jit
def load_slot(slot, BLOCK_K: tl.constexpr):
    k = tl.arange(0, BLOCK_K)
    return tl.load(slot + k[:, None] * BLOCK_K + k[None, :])


@triton.jit
def load_transposed(slot, BLOCK_K: tl.constexpr):
    k = tl.arange(0, BLOCK_K)
    return tl.load(slot + k[None, :] * BLOCK_K + k[:, None])


@triton.jit
def multiply(left, right, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + left @ right."""
    k = tl.arange(0, BLOCK_K)
    for first in range(0, BLOCK_K, _COLUMNS):
        inner = first + tl.arange(0, _COLUMNS)
        columns = tl.load(left + k[:, None] * BLOCK_K + inner[None, :])  # [BLOCK_K, COLUMNS]
        rows = tl.load(right + inner[:, None] * BLOCK_K + k[None, :])  # [COLUMNS, BLOCK_K]
        total = tl.dot(columns, rows, total, input_precision=PRECISION)
    return total


@triton.jit
def multiply_symmetric(left, right, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + left @ (right + rightᵀ)."""
    k = tl.arange(0, BLOCK_K)
    for first in range(0, BLOCK_K, _COLUMNS):
        inner = first + tl.arange(0, _COLUMNS)
        columns = tl.load(left + k[:, None] * BLOCK_K + inner[None, :])  # [BLOCK_K, COLUMNS]
        rows = tl.load(right + inner[:, None] * BLOCK_K + k[None, :])  # [COLUMNS, BLOCK_K]
        rows += tl.load(right + k[None, :] * BLOCK_K + inner[:, None])
        total = tl.dot(columns, rows, total, input_precision=PRECISION)
    return total
