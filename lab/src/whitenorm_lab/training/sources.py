"""Where a run's batches come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whitenorm_lab.training.batches import generator


@dataclass
class Source:
    """Batches of a data set, made for one process of a run, and what a model must know of it.

    A batch is anything that lightning moves to a device: tensors in named tuples, dicts and lists.
    """

    description: dict[str, Any]
    """What :meth:`Task.build` needs, as JSON has it, such as the number of classes; it is kept in the run's folder."""
    train: Any
    """As many batches in every epoch, from the step on that training is at: :class:`~.batches.StepBatches`, or a
    :class:`~.reading.Loader` of files."""
    tests: dict[str, Any]
    """Batches by the name of what is tested on, such as "test" and "validation"; every process has as many. Not as a
    list, which lightning takes apart: :class:`~.batches.TestBatches`, or a loader."""
    calibration: Callable[[int], Any]
    """Batches, as in training, of so many training examples, which are not augmented."""
    per_step: float
    """Examples a step, over all processes."""
    close: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        # As a run's folder gives it back, where a tuple is a list.
        self.description = json.loads(json.dumps(self.description))


def calibration_rows(number: int, wanted: int, seed: int, world: int = 1) -> Tensor:
    """Which of so many training examples population statistics are taken from; the same at every test.

    As many for each of the processes, none of which then has an empty batch.

    Example::

        >>> len(calibration_rows(5, 100, seed=0, world=2))
        4
    """
    rows = torch.randperm(number, generator=generator(seed, "recalibrate"))[:wanted]
    return rows[: len(rows) // world * world]
