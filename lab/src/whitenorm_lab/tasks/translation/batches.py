"""Batches of sentence pairs of similar lengths, limited by their number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from whitenorm_lab.tasks.translation.text import Pairs
from whitenorm_lab.tasks.translation.vocabulary import PAD
from whitenorm_lab.training.batches import StepBatches, build_generator, split_in_order

# Per batch of a test. The search needs memory for each of their beams.
_TEST_SENTENCES = 100


class Batch(NamedTuple):
    """Source ids ``(N, S)`` and target ids ``(N, T)``, each sentence with its end, then padding."""

    source: Tensor
    target: Tensor
    tokens: float
    """Divisor of the loss: target tokens of all processes divided by the number of processes."""


class TextBatch(NamedTuple):
    """Sentence pairs; if ``is_translated`` is False they count in the loss only."""

    source: list[str]
    target: list[str]
    is_translated: bool


class Sequences:
    """Sentences of ids stored in one tensor.

    Example::

        >>> Sequences([[5, 6, 2], [7, 2]]).pad(torch.tensor([1, 0]))
        tensor([[7, 2, 0],
                [5, 6, 2]])
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(row) for row in rows])
        self._starts = self.lengths.cumsum(0) - self.lengths
        count = int(self.lengths.sum())
        self._ids = torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.int32, count))

    def pad(self, rows: Tensor) -> Tensor:
        """Return the given sentences as one padded tensor ``(N, longest)``."""
        lengths = self.lengths[rows, None]
        positions = torch.arange(int(lengths.max()))
        is_inside = positions < lengths
        index = (self._starts[rows, None] + positions).masked_fill(~is_inside, 0)
        return self._ids[index].long().masked_fill(~is_inside, PAD)


class TokenBatches(StepBatches):
    """Training batches of at most ``tokens`` tokens: longest sentence × pairs, with padding.

    Pairs are sorted by length, pairs of equal length are shuffled, and the sorted list is cut into full batches, which
    are then shuffled. The cuts depend on the lengths only, so that all epochs have the same number of batches. With
    several processes, each takes every ``world``-th pair of each batch.
    """

    def __init__(
        self,
        source: Sequences,
        target: Sequences,
        tokens: int,
        seed: int,
        step: Callable[[], int],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(step)
        self.source, self.target, self.seed, self.rank, self.world = source, target, seed, rank, world
        longest = torch.maximum(source.lengths, target.lengths)
        # By the longer side, then by the source: the targets of a batch then have similar lengths, too.
        self._key = longest * (1 + int(longest.max())) + source.lengths
        self._sizes = _split_by_tokens(longest.sort().values.tolist(), tokens, world)

    def __len__(self) -> int:
        return len(self._sizes)

    def order(self, epoch: int) -> list[Tensor]:
        random = build_generator(self.seed, epoch)
        shuffled = torch.randperm(len(self._key), generator=random)
        rows = shuffled[self._key[shuffled].argsort(stable=True)]
        batches = rows.split(self._sizes)
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]

    def batch(self, epoch: int, i: int, part: Tensor) -> Batch:
        tokens = int(self.target.lengths[part].sum()) / self.world
        rows = part[self.rank :: self.world]
        return Batch(self.source.pad(rows), self.target.pad(rows), tokens)


def _split_by_tokens(lengths: Sequence[int], tokens: int, world: int) -> list[int]:
    """Return the number of pairs in each batch, for pairs sorted by length.

    Example::

        >>> _split_by_tokens([2, 2, 3, 4, 4], tokens=8, world=1)
        [2, 2, 1]
    """
    sizes, rows = [], 0
    for length in lengths:
        if length * world > tokens:
            raise ValueError(
                f"expected batch_size to have room for the longest pair in each of {world} processes (got {tokens} "
                f"tokens, and a pair of {length}); use a larger batch_size or a smaller max_length"
            )
        if (rows + 1) * length > tokens:
            sizes.append(rows)
            rows = 0
        rows += 1
    if sizes:
        # Balance the last two batches where there is room, so that the last one is not tiny.
        both = sizes[-1] + rows
        rows = max(rows, min(both // 2, tokens // lengths[-1]))
        sizes[-1] = both - rows
        if min(sizes[-1], rows) < world:
            # Every process needs a pair of every batch.
            return [*sizes[:-1], both]
    if rows < world:
        raise ValueError(f"expected a training pair for each of {world} processes (got {rows})")
    return [*sizes, rows]


class TextBatches:
    """Sentence pairs sorted by length, each once, in the same number of batches for every process."""

    def __init__(self, pairs: Pairs, is_translated: bool, rank: int = 0, world: int = 1) -> None:
        order = torch.tensor([len(sentence) for sentence in pairs.source]).argsort(stable=True)
        self.rows = split_in_order(order, _TEST_SENTENCES, rank, world)
        self.pairs, self.is_translated = pairs, is_translated

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TextBatch]:
        for rows in self.rows:
            source, target = ([side[row] for row in rows.tolist()] for side in self.pairs)
            yield TextBatch(source, target, self.is_translated)
