"""Training batches by number: order and draws follow from seed, epoch and step, so that any step can be next."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def generator(*key: int | str) -> torch.Generator:
    """Random numbers for a key, such as (seed, epoch, step).

    Example::

        >>> torch.equal(torch.randperm(5, generator=generator(0, 1)), torch.randperm(5, generator=generator(0, 1)))
        True
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


class StepBatches(ABC):
    """The training batches of the epoch that the step count is in, from that step on.

    Lightning asks for an iterator an epoch; ``step`` tells it where training is, which after a restart may be in the
    middle of one. Every epoch has as many steps.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self.step = step

    @abstractmethod
    def __len__(self) -> int:
        """Steps an epoch."""

    @abstractmethod
    def order(self, epoch: int) -> Sequence[Any]:
        """What each batch of an epoch is made of, such as rows."""

    @abstractmethod
    def batch(self, epoch: int, i: int, part: Any) -> Any:
        """This process's share of an epoch's i-th batch, made of the i-th part of the order."""

    def __iter__(self) -> Iterator[Any]:
        epoch, start = divmod(self.step(), len(self))
        order = self.order(epoch)
        for i in range(start, len(self)):
            yield self.batch(epoch, i, order[i])

    # Lightning takes what has these for a loader that can go on in the middle of an epoch.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Nothing to load: the step count says it all."""


class TestBatches:
    """Batches in order, made one by one from parts, such as the rows of :func:`in_turn`.

    Example::

        >>> list(TestBatches(in_turn(torch.arange(5), 3), lambda rows: rows * 10))
        [tensor([ 0, 10, 20]), tensor([30, 40])]
    """

    __test__ = False

    def __init__(self, parts: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.parts, self.make = parts, make

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, self.parts)


def check_batch_size(batch_size: int, number: int, world: int) -> int:
    """The examples a step, where 0 is all of them; each of the processes has the same share."""
    size = batch_size or number
    if not 0 < size <= number:
        raise ValueError(f"expected batch_size up to the {number} training examples (got {batch_size})")
    if size % world:
        raise ValueError(f"expected batch_size to be a multiple of the {world} processes (got {size})")
    return size


def shuffled(rows: Tensor, batch_size: int, *key: int | str) -> list[Tensor]:
    """Rows in the order that a key draws, in batches; what does not fill a last one is left out.

    Example::

        >>> [len(batch) for batch in shuffled(torch.arange(10), 4, 0, 1)]
        [4, 4]
    """
    order = rows[torch.randperm(len(rows), generator=generator(*key))]
    return list(order.split(batch_size)[: len(rows) // batch_size])


def in_turn(rows: Tensor, batch_size: int, rank: int = 0, world: int = 1) -> list[Tensor]:
    """A process's shares of rows in order, each once, in batches of even sizes, of which every process has as many.

    A share is empty where there are fewer rows than processes.

    Example::

        >>> in_turn(torch.arange(5), 2, rank=1, world=2)
        [tensor([2]), tensor([4])]
    """
    batches = rows.tensor_split(max(1, -(-len(rows) // (batch_size * world)))) if len(rows) else ()
    return [batch.tensor_split(world)[rank] for batch in batches]
