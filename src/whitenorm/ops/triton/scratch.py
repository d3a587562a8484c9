"""Products of the solves, whose operands are in registers or in scratch memory.

A solve needs several K×K matrices at once. Small ones stay in registers, where Triton exchanges them between threads as
products need them. Larger ones would spill, so that each program writes them to memory of its own, and a product loads
a few columns of one matrix and rows of the other at a time.

An *operand* is accordingly a matrix in registers or a pointer to one. Operands in memory may be read after the barrier
that follows :func:`as_operand`, and their memory may be written again after the next.

Shared memory would be closer than scratch memory, which the caches hold. Triton has no way to place a matrix there and
to load parts of it. Gluon has, but its layouts are those of one generation of GPUs, its kernels do not run in the
interpreter, and its interface changes between the versions of Triton that torch requires.
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


def allocate_scratch(
    like: Tensor, matrices: int, features: int, slots: int, largest_in_registers: int
) -> tuple[int, Tensor | None]:
    """Return the number of programs to solve for ``matrices``, and memory for ``slots`` operands of each program."""
    programs = min(matrices, MOST_PROGRAMS)
    block = block_features(features)
    if block <= largest_in_registers:
        return programs, None
    return programs, like.new_empty((programs, slots, block, block), dtype=torch.float32)


@triton.jit
def locate_slots(scratch, SLOTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the program's scratch memory, None if it needs none."""
    slots = scratch
    if scratch is not None:
        slots += tl.program_id(0) * SLOTS * BLOCK_K * BLOCK_K
    return slots


@triton.jit
def as_operand(values, slots, SLOT, BLOCK_K: tl.constexpr):
    """Return a matrix as an operand; the slot is where it lies in memory."""
    if slots is None:
        operand = values
    else:
        k = tl.arange(0, BLOCK_K)
        operand = slots + SLOT * BLOCK_K * BLOCK_K
        tl.store(operand + k[:, None] * BLOCK_K + k[None, :], values)
    return operand


@triton.jit
def wait_for_operands(slots):
    """Wait until all threads have written their parts of operands, and read those of earlier ones."""
    if slots is not None:
        tl.debug_barrier()


@triton.jit
def load_operand(operand, BLOCK_K: tl.constexpr):
    if operand.dtype.is_ptr():
        k = tl.arange(0, BLOCK_K)
        values = tl.load(operand + k[:, None] * BLOCK_K + k[None, :])
    else:
        values = operand
    return values


@triton.jit
def load_transposed(operand, BLOCK_K: tl.constexpr):
    if operand.dtype.is_ptr():
        k = tl.arange(0, BLOCK_K)
        values = tl.load(operand + k[None, :] * BLOCK_K + k[:, None])
    else:
        values = tl.trans(operand)
    return values


@triton.jit
def multiply(left, right, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + left @ right."""
    if left.dtype.is_ptr():
        k = tl.arange(0, BLOCK_K)
        for first in tl.range(0, BLOCK_K, _COLUMNS, num_stages=2):
            inner = first + tl.arange(0, _COLUMNS)
            columns = tl.load(left + k[:, None] * BLOCK_K + inner[None, :])  # [BLOCK_K, COLUMNS]
            rows = tl.load(right + inner[:, None] * BLOCK_K + k[None, :])  # [COLUMNS, BLOCK_K]
            total = tl.dot(columns, rows, total, input_precision=PRECISION)
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def multiply_symmetric(left, right, share, total, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + left @ (right + share · rightᵀ)."""
    if left.dtype.is_ptr():
        k = tl.arange(0, BLOCK_K)
        for first in tl.range(0, BLOCK_K, _COLUMNS, num_stages=2):
            inner = first + tl.arange(0, _COLUMNS)
            columns = tl.load(left + k[:, None] * BLOCK_K + inner[None, :])  # [BLOCK_K, COLUMNS]
            rows = tl.load(right + inner[:, None] * BLOCK_K + k[None, :])  # [COLUMNS, BLOCK_K]
            rows += share * tl.load(right + k[None, :] * BLOCK_K + inner[:, None])
            total = tl.dot(columns, rows, total, input_precision=PRECISION)
    else:
        total = tl.dot(left, right + share * tl.trans(right), total, input_precision=PRECISION)
    return total
