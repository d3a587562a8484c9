"""Memory that is used again: on a CPU, fresh memory costs more than the arithmetic on it, unless it is small."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.runtime.mode import may_write_in_place

_WORTH_A_CALL = 2**17


class Scratch:
    """Memory for a block's intermediate result, used again for the next block.

    A call gives a tensor to pass as ``out``, or None where it would not help, or where nothing may be written in place.

    Padded, its rows are not a large power of two apart: such rows share the same few places in a cache, which slows
    down a product that reads them. A batched product cannot be written there without a detour.
    """

    def __init__(self, padded: bool = False) -> None:
        self._padded = padded
        self._helps = may_write_in_place()
        self._buffer: Tensor | None = None

    def __call__(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
        """A tensor of the shape of ``like``, and of its dtype unless another is given."""
        if not self._helps or nbytes(like) < _WORTH_A_CALL or like.device.type != "cpu":
            return None
        dtype = like.dtype if dtype is None else dtype
        if self._buffer is None or self._buffer.shape != like.shape or self._buffer.dtype != dtype:
            self._buffer = _empty(like, dtype, self._padded)
        return self._buffer


class Ring:
    """Several pieces of scratch memory, given out in turn: the first is written over when all have been used."""

    def __init__(self, pieces: int) -> None:
        self._helps = may_write_in_place()
        self._pieces: list[Tensor | None] = [None] * pieces
        self._given = 0

    def __call__(self, like: Tensor) -> Tensor | None:
        """A tensor of the shape of ``like``, a contiguous one."""
        if not self._helps or nbytes(like) < _WORTH_A_CALL or like.device.type != "cpu":
            return None
        self._given = (self._given + 1) % len(self._pieces)
        piece = self._pieces[self._given]
        if piece is None or piece.shape != like.shape:
            self._pieces[self._given] = piece = like.new_empty(like.shape)
        return piece


def nbytes(x: Tensor) -> int:
    """Bytes of all elements of a view, wherever they lie."""
    return x.numel() * x.element_size()


def _empty(like: Tensor, dtype: torch.dtype, padded: bool) -> Tensor:
    """A dense batch of matrices, with features next to each other if they are so in ``like``, otherwise positions."""
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return like.mT.new_empty(like.mT.shape, dtype=dtype).mT
    length = like.shape[-1]
    padding = 16 if padded and length * dtype.itemsize % 1024 == 0 else 0
    return like.new_empty(*like.shape[:-1], length + padding, dtype=dtype)[..., :length]
