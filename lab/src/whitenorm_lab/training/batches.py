"""Training batches whose order and random draws follow from seed, epoch and step, so that a run can resume anywhere."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def build_generator(*key: int | str) -> torch.Generator:
    """Return a generator seeded by a key such as (seed, epoch, step).

    Example::

        >>> a, b = build_generator(0, 1), build_generator(0, 1)
        >>> torch.equal(torch.randperm(5, generator=a), torch.randperm(5, generator=b))
        True
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


class StepBatches(ABC):
    """Training batches in memory, which resume in the middle of an epoch.

    Lightning calls ``iter`` once per epoch; the iterator starts at the batch that the global step points to. Every
    epoch has the same number of steps.

    Args:
        step: returns the global step.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self.step = step

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps per epoch."""

    @abstractmethod
    def order(self, epoch: int) -> Sequence[Any]:
        """Return the parts, such as row indices, that the batches of an epoch are built from."""

    @abstractmethod
    def batch(self, epoch: int, i: int, part: Any) -> Any:
        """Build this process's share of batch ``i`` of an epoch from part ``i`` of its order."""

    def __iter__(self) -> Iterator[Any]:
        epoch, start = divmod(self.step(), len(self))
        order = self.order(epoch)
        for i in range(start, len(self)):
            yield self.batch(epoch, i, order[i])

    # Lightning resumes in the middle of an epoch only if the loader has these two methods.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Do nothing: the global step is the whole state."""


class TestBatches:
    """Batches in a fixed order, built one by one from parts such as the rows of :func:`split_in_order`.

    Example::

        >>> list(TestBatches(split_in_order(torch.arange(5), 3), lambda rows: rows * 10))
        [tensor([ 0, 10, 20]), tensor([30, 40])]
    """

    __test__ = False

    def __init__(self, parts: Sequence[Any], build: Callable[[Any], Any]) -> None:
        self.parts, self.build = parts, build

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return map(self.build, self.parts)


def check_batch_size(batch_size: int, num_examples: int, world: int) -> int:
    """Return the examples per step, all of them for 0; raise unless they divide evenly between the processes."""
    size = batch_size or num_examples
    if not 0 < size <= num_examples:
        raise ValueError(f"expected batch_size up to the {num_examples} training examples (got {batch_size})")
    if size % world:
        raise ValueError(f"expected batch_size to be a multiple of the {world} processes (got {size})")
    return size


def shuffle_into_batches(rows: Tensor, batch_size: int, *key: int | str) -> list[Tensor]:
    """Shuffle rows by a key and split them into full batches; an incomplete last batch is dropped.

    Example::

        >>> [len(batch) for batch in shuffle_into_batches(torch.arange(10), 4, 0, 1)]
        [4, 4]
    """
    order = rows[torch.randperm(len(rows), generator=build_generator(*key))]
    return list(order.split(batch_size)[: len(rows) // batch_size])


def split_in_order(rows: Tensor, batch_size: int, rank: int = 0, world: int = 1) -> list[Tensor]:
    """Split rows in order into batches of nearly equal size and return one process's share of each.

    Every row occurs once over all processes, and every process has the same number of batches. With fewer rows than
    processes, some shares are empty.

    Example::

        >>> split_in_order(torch.arange(5), 2, rank=1, world=2)
        [tensor([2]), tensor([4])]
    """
    batches = rows.tensor_split(max(1, -(-len(rows) // (batch_size * world)))) if len(rows) else ()
    return [batch.tensor_split(world)[rank] for batch in batches]


def draw_calibration_rows(num_examples: int, wanted: int, seed: int, world: int = 1) -> Tensor:
    """Draw the training examples that population statistics are computed from; the same rows at every test.

    The number of rows is a multiple of the number of processes, so that no process has an empty batch.

    Example::

        >>> len(draw_calibration_rows(5, 100, seed=0, world=2))
        4
    """
    rows = torch.randperm(num_examples, generator=build_generator(seed, "recalibrate"))[:wanted]
    return rows[: len(rows) // world * world]
