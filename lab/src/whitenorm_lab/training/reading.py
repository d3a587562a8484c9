"""Batches of examples that are read from files, by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from whitenorm_lab.training.batches import generator, in_turn, shuffled
from whitenorm_lab.training.config import RunConfig


class Examples(Protocol):
    """Examples by number; an OSError of one names its file. What is random in one is drawn by torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Any: ...


class Loader:
    """A DataLoader that can go on in the middle of an epoch, as its order can.

    Args:
        examples: what is read.
        order: batches of (epoch, number of the example): :class:`TrainOrder` or :func:`test_order`.
        config: whose seed, epoch and the example's number every example's draws follow from, in whatever process.
        collate: from a list of examples to a batch; stacks by default.
    """

    def __init__(
        self, examples: Examples, order: Any, config: RunConfig, collate: Callable[[list[Any]], Any] | None = None
    ) -> None:
        self.order = order
        self.batches: Iterator[Any] | None = None
        self.loader: DataLoader[Any] | None = DataLoader(
            _Seeded(examples, config.seed),
            batch_sampler=order,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=collate,
            # Otherwise each pass draws a number that training would notice.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        self.batches = None
        return self

    def __next__(self) -> Any:
        if self.batches is None:
            # Not before the first batch is asked for, when the step count is known.
            assert self.loader is not None
            self.batches = iter(self.loader)
        try:
            return next(self.batches)
        except OSError as error:
            # From a worker it comes with the worker's traceback before it.
            raise OSError(str(error).strip().rsplit("OSError: ", 1)[-1]) from error

    def close(self) -> None:
        """End the workers now; left to the garbage collector, each is waited for in vain."""
        self.batches = self.loader = None

    # Lightning takes what has these for a loader that can go on in the middle of an epoch.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load: the step count says it all."""


class TrainOrder:
    """The batches of an epoch as (epoch, number of the example), from the step on that training is at.

    Of several processes, each takes its share of every batch.
    """

    def __init__(
        self, numbers: Tensor, batch_size: int, seed: int, step: Callable[[], int], rank: int, world: int
    ) -> None:
        self.numbers, self.batch_size, self.seed, self.step = numbers, batch_size, seed, step
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.numbers) // self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, start = divmod(self.step(), len(self))
        for batch in shuffled(self.numbers, self.batch_size, self.seed, epoch)[start:]:
            yield [(epoch, i) for i in batch[self.rank :: self.world].tolist()]


def test_order(numbers: Tensor, batch_size: int, rank: int, world: int) -> Sequence[list[tuple[int, int]]]:
    """This process's shares of the examples in order, once, in batches of even sizes.

    Example::

        >>> test_order(torch.arange(3), 2, 0, 1)
        [[(0, 0), (0, 1)], [(0, 2)]]
    """
    return [[(0, i) for i in share.tolist()] for share in in_turn(numbers, batch_size, rank, world)]


class _Seeded(Dataset[Any]):
    """Examples whose draws follow from the seed, the epoch and their number."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self.examples, self.seed = examples, seed

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, i = key
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the GPUs too.
            torch.default_generator.manual_seed(generator(self.seed, epoch, i).initial_seed())
            return self.examples[i]
