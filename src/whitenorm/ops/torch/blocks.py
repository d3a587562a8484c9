"""Cutting ``x[N, G, K, L]`` into blocks that stay in a CPU's cache while several operations pass over them.

Blocks of half precision become float32 one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import Scratch, compute_dtype, may_write_in_place

# About the second-level caches of two cores: large enough to hide the cost of calls, and small enough to stay, with a
# copy, in the cache behind them.
BLOCK_BYTES = 2**22


class Block(NamedTuple):
    """Some samples and some positions; None for all of them."""

    samples: slice | None = None
    positions: slice | None = None

    def of(self, x: Tensor) -> Tensor:
        """The block of ``x[N, G, K, L]``."""
        x = x if self.samples is None else x[self.samples]
        return x if self.positions is None else x[..., self.positions]

    def select(self, statistic: Tensor) -> Tensor:
        """What belongs to the block's samples of a statistic ``(N or 1, ...)``."""
        return statistic if self.samples is None or statistic.shape[0] == 1 else statistic[self.samples]


def in_rows(x: Tensor) -> Tensor:
    """``x[N, G, K, J, P]`` as ``[N, G, K, L]``: a row a feature."""
    return x.reshape(*x.shape[:3], x.shape[3] * x.shape[4])


def blocks(x: Tensor, cut_positions: bool = True) -> list[Block]:
    """Blocks of whole samples; a single sample is cut along its positions, if it may be. One block for small inputs."""
    n, _, _, positions = x.shape
    size = x.numel() * compute_dtype(x.dtype).itemsize
    if x.device.type != "cpu" or not may_write_in_place() or size <= BLOCK_BYTES:
        return [Block()]
    if n == 1:
        step = max(1, positions * BLOCK_BYTES // size) if cut_positions else positions
        return [Block(positions=slice(start, start + step)) for start in range(0, positions, step)]
    step = max(1, n * BLOCK_BYTES // size)
    return [Block(slice(start, start + step)) for start in range(0, n, step)]


def gathered(x: Tensor, scratch: Scratch) -> Tensor:
    """The block in the dtype of computation, copied if its samples and groups are not one batch of matrices."""
    wide = compute_dtype(x.dtype)
    if not may_write_in_place() or (one_batch(x) and x.dtype == wide):
        return x.to(wide)
    space = scratch(x, wide)
    return x.to(wide) if space is None else space.copy_(x)


def room(out: Tensor, scratch: Scratch) -> Tensor:
    """Where to write a batch of products that is meant for ``out``: there, or elsewhere if that is not one batch, or
    not in the dtype of computation.
    """
    wide = compute_dtype(out.dtype)
    if one_batch(out) and out.dtype == wide:
        return out
    space = scratch(out, wide)
    if space is not None:
        return space
    return out if out.dtype == wide else torch.empty_like(out, dtype=wide)


def one_batch(x: Tensor) -> bool:
    """Whether samples and groups together are one batch dimension, without a copy."""
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
