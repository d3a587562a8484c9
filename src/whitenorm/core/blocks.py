"""Cutting ``x[N, G, K, L]`` into blocks that stay in a CPU's cache while several operations pass over them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whitenorm.core.mode import may_write_in_place

# A part of the second-level cache: large enough to hide the cost of calls, small enough to leave room for a copy.
BLOCK_BYTES = 2**21
_WORTH_A_CALL = 2**17


class Block(NamedTuple):
    """Some samples and some positions; None for all of them."""

    samples: slice | None = None
    positions: slice | None = None

    def of(self, x: Tensor) -> Tensor:
        """The block of ``x[N, G, K, L]``."""
        x = x if self.samples is None else x[self.samples]
        return x if self.positions is None else x[..., self.positions]

    def own(self, statistic: Tensor) -> Tensor:
        """What belongs to the block's samples of a statistic ``(N or 1, ...)``."""
        return statistic if self.samples is None or statistic.shape[0] == 1 else statistic[self.samples]


def blocks(x: Tensor, cut_positions: bool = True) -> list[Block]:
    """Blocks of whole samples; a single sample is cut along its positions, if it may be. One block for small inputs."""
    n, _, _, positions = x.shape
    if x.device.type != "cpu" or not may_write_in_place() or nbytes(x) <= BLOCK_BYTES:
        return [Block()]
    if n == 1:
        step = max(1, positions * BLOCK_BYTES // nbytes(x)) if cut_positions else positions
        return [Block(positions=slice(start, start + step)) for start in range(0, positions, step)]
    step = max(1, n * BLOCK_BYTES // nbytes(x))
    return [Block(slice(start, start + step)) for start in range(0, n, step)]


class Scratch:
    """Memory for a block's intermediate result, used again for the next block.

    Fresh memory costs a CPU more than the arithmetic on it, unless it is small. A call gives a tensor to pass as
    ``out``, or None where it would not help, or where nothing may be written in place.

    Padded, its rows are not a large power of two apart: such rows share the same few places in a cache, which slows
    down a product that reads them. A batched product cannot be written there without a detour.
    """

    def __init__(self, padded: bool = False) -> None:
        self._padded = padded
        self._buffer: Tensor | None = None

    def __call__(self, like: Tensor) -> Tensor | None:
        if not may_write_in_place() or nbytes(like) < _WORTH_A_CALL or like.device.type != "cpu":
            return None
        if self._buffer is None or self._buffer.shape != like.shape:
            self._buffer = _empty(like, self._padded)
        return self._buffer


class Ring:
    """Several pieces of scratch memory, given out in turn: the first is written over when all have been used."""

    def __init__(self, pieces: int) -> None:
        self._pieces = [Scratch() for _ in range(pieces)]
        self._given = 0

    def __call__(self, like: Tensor) -> Tensor | None:
        if not may_write_in_place():
            return None
        self._given += 1
        return self._pieces[self._given % len(self._pieces)](like)


def _empty(like: Tensor, padded: bool) -> Tensor:
    """A dense batch of matrices, with features next to each other if they are so in ``like``, otherwise positions."""
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return like.mT.new_empty(like.mT.shape).mT
    length = like.shape[-1]
    padding = 16 if padded and length * like.element_size() % 1024 == 0 else 0
    return like.new_empty(*like.shape[:-1], length + padding)[..., :length]


def gathered(x: Tensor, scratch: Scratch) -> Tensor:
    """The block, copied if its samples and groups are not one batch of matrices."""
    if not may_write_in_place() or one_batch(x):
        return x
    space = scratch(x)
    return x if space is None else space.copy_(x)


def room(out: Tensor, scratch: Scratch) -> Tensor:
    """Where to write a batch of products that is meant for ``out``: there, or elsewhere if that is not one batch."""
    space = None if one_batch(out) else scratch(out)
    return out if space is None else space


def nbytes(x: Tensor) -> int:
    """Bytes of all elements of a view, wherever they lie."""
    return x.numel() * x.element_size()


def one_batch(x: Tensor) -> bool:
    """Whether samples and groups together are one batch dimension, without a copy."""
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
