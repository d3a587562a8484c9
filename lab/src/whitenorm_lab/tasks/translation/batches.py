"""Batches of sentence pairs by tokens: pairs of like lengths together, batches in the order of seed and epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from whitenorm_lab.tasks.translation.text import Pairs
from whitenorm_lab.tasks.translation.vocabulary import PAD
from whitenorm_lab.training.batches import StepBatches, generator, in_turn

# Of a test; a beam each, several of them, are translated at once.
_SENTENCES = 100


class Batch(NamedTuple):
    """Pairs ``(N, S)`` and ``(N, T)``, each with its end and padding behind it."""

    source: Tensor
    target: Tensor
    tokens: float
    """Of the target side, over all processes, divided by their number: what a loss is divided by."""


class TextBatch(NamedTuple):
    """Pairs as they were read; outputs are compared with the targets unless they only count in the loss."""

    source: list[str]
    target: list[str]
    translated: bool


class Sequences:
    """Sentences of ids in one tensor, from which any of them are taken as a padded batch.

    Example::

        >>> Sequences([[5, 6, 2], [7, 2]]).padded(torch.tensor([1, 0]))
        tensor([[7, 2, 0],
                [5, 6, 2]])
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(row) for row in rows])
        self._starts = self.lengths.cumsum(0) - self.lengths
        count = int(self.lengths.sum())
        self._ids = torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.int32, count))

    def padded(self, rows: Tensor) -> Tensor:
        """``(N, longest)``."""
        lengths = self.lengths[rows, None]
        places = torch.arange(int(lengths.max()))
        inside = places < lengths
        index = (self._starts[rows, None] + places).masked_fill(~inside, 0)
        return self._ids[index].long().masked_fill(~inside, PAD)


class TokenBatches(StepBatches):
    """Training batches of at most so many tokens, the longer side's with its padding counted.

    Pairs are sorted by length, those of equal lengths in an order that is drawn, and cut where a batch is full; the
    batches come in an order that is drawn too. Lengths alone decide on the cuts, so that every epoch has as many
    batches. Of several processes each takes every so-manieth pair of every batch.
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
        # Of pairs whose longer sides are alike, those whose sources are: targets are then nearly so.
        self._key = longest * (1 + int(longest.max())) + source.lengths
        self._cuts = _cuts(longest.sort().values.tolist(), tokens, world)

    def __len__(self) -> int:
        return len(self._cuts)

    def order(self, epoch: int) -> list[Tensor]:
        drawn = generator(self.seed, epoch)
        ties = torch.randperm(len(self._key), generator=drawn)
        rows = ties[self._key[ties].argsort(stable=True)]
        batches = rows.split(self._cuts)
        return [batches[i] for i in torch.randperm(len(batches), generator=drawn).tolist()]

    def batch(self, epoch: int, i: int, part: Tensor) -> Batch:
        tokens = int(self.target.lengths[part].sum()) / self.world
        rows = part[self.rank :: self.world]
        return Batch(self.source.padded(rows), self.target.padded(rows), tokens)


def _cuts(lengths: Sequence[int], tokens: int, world: int) -> list[int]:
    """How many pairs each batch has, of pairs by rising length.

    Example::

        >>> _cuts([2, 2, 3, 4, 4], tokens=8, world=1)
        [2, 2, 1]
    """
    cuts, rows = [], 0
    for length in lengths:
        if length * world > tokens:
            raise ValueError(
                f"expected batch_size to have room for the longest pair in each of {world} processes (got {tokens} "
                f"tokens, and a pair of {length}); use a larger batch_size or a smaller max_length"
            )
        if (rows + 1) * length > tokens:
            cuts.append(rows)
            rows = 0
        rows += 1
    if cuts:
        # The last two are made alike, as far as there is room, so that few processes see what one would.
        both = cuts[-1] + rows
        rows = max(rows, min(both // 2, tokens // lengths[-1]))
        cuts[-1] = both - rows
        if min(cuts[-1], rows) < world:
            # Every process needs a pair of every batch.
            return [*cuts[:-1], both]
    if rows < world:
        raise ValueError(f"expected a training pair for each of {world} processes (got {rows})")
    return [*cuts, rows]


class TextBatches:
    """Pairs as text, the shortest first, each once; every process has as many batches as the others."""

    def __init__(self, pairs: Pairs, translated: bool, rank: int = 0, world: int = 1) -> None:
        order = torch.tensor([len(sentence) for sentence in pairs.source]).argsort(stable=True)
        self.rows = in_turn(order, _SENTENCES, rank, world)
        self.pairs, self.translated = pairs, translated

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TextBatch]:
        for rows in self.rows:
            source, target = ([side[row] for row in rows.tolist()] for side in self.pairs)
            yield TextBatch(source, target, self.translated)
