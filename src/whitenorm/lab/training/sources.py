"""Where a run's batches come from: sets in memory, or a folder of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whitenorm.lab import data
from whitenorm.lab.data import Dataset, Split
from whitenorm.lab.training.batches import TestBatches, TrainBatches, generator, normalisation
from whitenorm.lab.training.config import Train

TEST_BATCH = 500
_FOLDER = "imagefolder:"


@dataclass
class Source:
    """Batches of a data set, made for this process, and what a net must know of it."""

    classes: int
    shape: tuple[int, int, int]
    batch_size: int
    train: Any
    test: Any
    normalisation: tuple[Tensor, Tensor] | None
    close: Callable[[], object] = lambda: None


def source(config: Train, dataset: Dataset | None, step: Callable[[], int], rank: int, world: int) -> Source:
    """The batches that a configuration asks for, or those of a data set at hand."""
    if dataset is None and config.dataset.startswith(_FOLDER):
        from whitenorm.lab.training import imagefolder

        return imagefolder.source(config, config.dataset.removeprefix(_FOLDER), step, rank, world)
    dataset = data.load(config.dataset, config.data) if dataset is None else dataset
    train, test = _part(dataset.train, config.train_images, config.seed), dataset.test
    test = Split(test.images[: config.test_images], test.labels[: config.test_images])
    batches = TrainBatches(train, config.batch_size, config.seed, config.augment, step, rank, world)
    shape = tuple(train.images.shape[1:])
    return Source(
        dataset.classes,
        shape,  # type: ignore[arg-type]
        batches.batch_size,
        batches,
        TestBatches(test, min(TEST_BATCH, config.batch_size * 4 or TEST_BATCH), rank, world),
        normalisation(train.images, config.normalize),
    )


def _part(split: Split, number: int | None, seed: int) -> Split:
    if number is None:
        return split
    if number > len(split.labels):
        raise ValueError(f"expected train_images up to the {len(split.labels)} there are (got {number})")
    chosen = torch.randperm(len(split.labels), generator=generator(seed))[:number]
    return Split(split.images[chosen], split.labels[chosen])
