"""Data loaders of a run: their collection, and resumable loaders of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from whitenorm_lab.training.batches import (
    build_generator,
    check_batch_size,
    draw_calibration_rows,
    shuffle_into_batches,
    split_in_order,
)
from whitenorm_lab.training.config import RunConfig


@dataclass
class DataLoaders:
    """The loaders of one process of a run, and what the model must know about the data.

    A batch is anything that Lightning moves to a device: tensors in named tuples, dicts and lists.
    """

    description: dict[str, Any]
    """Arguments of :meth:`Task.build_model` that follow from the data, such as the number of classes. They are stored
    as JSON in the run's folder."""
    train: Any
    """Training batches, the same number in every epoch, from the global step on: :class:`~.batches.StepBatches` or a
    :class:`FileLoader`."""
    tests: dict[str, Any]
    """Test batches by the name of the set, such as "test" and "validation": :class:`~.batches.TestBatches` or a
    :class:`FileLoader`, the same number in every process. No lists, which Lightning would take apart."""
    build_calibration: Callable[[int], Any]
    """Returns batches of this many training examples without augmentation."""
    examples_per_step: float
    """Examples per step over all processes."""
    close: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        # As read back from a run's folder, where tuples have become lists.
        self.description = json.loads(json.dumps(self.description))


class Examples(Protocol):
    """Examples by index. Random draws use torch's default generator; an OSError names the damaged file."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Any: ...


class FileLoader:
    """A DataLoader that resumes in the middle of an epoch if its batch sampler does.

    Args:
        examples: the examples to read.
        batch_sampler: batches of (epoch, index of the example): :class:`TrainSampler` or :func:`build_test_sampler`.
        config: sets the number of workers and the seed. The random draws of an example follow from the seed, the epoch
            and its index, in whichever process it is read.
        collate: builds a batch from a list of examples; stacks them by default.
    """

    def __init__(
        self,
        examples: Examples,
        batch_sampler: Any,
        config: RunConfig,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.batches: Iterator[Any] | None = None
        self.loader: DataLoader[Any] | None = DataLoader(
            _SeededExamples(examples, config.seed),
            batch_sampler=batch_sampler,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=collate,
            # Without its own generator, each pass would advance torch's default one.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        self.batches = None
        return self

    def __next__(self) -> Any:
        if self.batches is None:
            # Created with the first batch, because the global step is not known before.
            assert self.loader is not None
            self.batches = iter(self.loader)
        try:
            return next(self.batches)
        except OSError as error:
            # An error from a worker has the worker's traceback before the message.
            raise OSError(str(error).strip().rsplit("OSError: ", 1)[-1]) from error

    def close(self) -> None:
        """End the workers now; the garbage collector would wait for each until a timeout."""
        self.batches = self.loader = None

    # Lightning resumes in the middle of an epoch only if the loader has these two methods.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the global step is the whole state."""


class FileLoaders:
    """Builds the file loaders of one process, and closes them together.

    Args:
        config: the run's configuration.
        train_indices: indices of the training examples.
        step: returns the global step.
        rank: index of the process.
        world: number of processes.
        collate: builds a batch from a list of examples; stacks them by default.
    """

    def __init__(
        self,
        config: RunConfig,
        train_indices: Tensor,
        step: Callable[[], int],
        rank: int,
        world: int,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.config, self.train_indices, self.step, self.collate = config, train_indices, step, collate
        self.rank, self.world = rank, world
        self.batch_size = check_batch_size(config.batch_size, len(train_indices), world)
        self._loaders: list[FileLoader] = []

    def build_train(self, examples: Examples) -> FileLoader:
        """Build the loader of training batches, in a new order in every epoch."""
        sampler = TrainSampler(self.train_indices, self.batch_size, self.config.seed, self.step, self.rank, self.world)
        return self._build(examples, sampler)

    def build_test(self, examples: Examples, indices: Tensor, batch_size: int | None = None) -> FileLoader:
        """Build a loader of examples in order, by default in batches of the training batch size."""
        per_process = max(1, (batch_size or self.batch_size) // self.world)
        return self._build(examples, build_test_sampler(indices, per_process, self.rank, self.world))

    def build_calibration(self, examples: Examples, count: int) -> FileLoader:
        """Build a loader of this many training examples for population statistics."""
        rows = draw_calibration_rows(len(self.train_indices), count, self.config.seed, self.world)
        return self.build_test(examples, self.train_indices[rows])

    def _build(self, examples: Examples, batch_sampler: Any) -> FileLoader:
        self._loaders.append(FileLoader(examples, batch_sampler, self.config, self.collate))
        return self._loaders[-1]

    def close(self) -> None:
        """End the workers of all loaders."""
        for loader in self._loaders:
            loader.close()


class TrainSampler:
    """Batches of (epoch, index) of the current epoch, from the global step on; each process gets its share of each."""

    def __init__(
        self, indices: Tensor, batch_size: int, seed: int, step: Callable[[], int], rank: int, world: int
    ) -> None:
        self.indices, self.batch_size, self.seed, self.step = indices, batch_size, seed, step
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.indices) // self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, start = divmod(self.step(), len(self))
        for batch in shuffle_into_batches(self.indices, self.batch_size, self.seed, epoch)[start:]:
            yield [(epoch, i) for i in batch[self.rank :: self.world].tolist()]


def build_test_sampler(indices: Tensor, batch_size: int, rank: int, world: int) -> Sequence[list[tuple[int, int]]]:
    """Return this process's shares of the examples in order, each once, in batches of nearly equal size.

    Example::

        >>> build_test_sampler(torch.arange(3), 2, 0, 1)
        [[(0, 0), (0, 1)], [(0, 2)]]
    """
    return [[(0, i) for i in share.tolist()] for share in split_in_order(indices, batch_size, rank, world)]


class _SeededExamples(Dataset[Any]):
    """Examples whose random draws follow from the seed, the epoch and their index."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self.examples, self.seed = examples, seed

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, i = key
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the GPUs.
            torch.default_generator.manual_seed(build_generator(self.seed, epoch, i).initial_seed())
            return self.examples[i]
