"""Batches of an image set that is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whitenorm_lab.data import Dataset, Split
from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.images import ImageBatches, TrainBatches
from whitenorm_lab.tasks.classification.shares import shares
from whitenorm_lab.training.batches import draw_calibration_rows
from whitenorm_lab.training.loaders import DataLoaders

TEST_BATCH = 500


def build_loaders(config: Train, dataset: Dataset, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
    """The batches of a set for one process, as bytes; ``train.split`` has the images that are trained on."""
    chosen, held_out = shares(len(dataset.train.labels), config)
    # All images in the order they have, where all are trained on: without a copy.
    train = dataset.train if len(chosen) == len(dataset.train.labels) else _rows(dataset.train, chosen)
    tests = {"test": _rows(dataset.test, slice(config.test_images)), "validation": _rows(dataset.train, held_out)}
    batches = TrainBatches(train, config.batch_size, config.seed, config.augment, step, rank, world)
    test_batch = min(TEST_BATCH, config.batch_size * 4 or TEST_BATCH)

    def calibration(number: int) -> ImageBatches:
        part = _rows(train, draw_calibration_rows(len(train.labels), number, config.seed, world))
        return ImageBatches(part, batches.batch_size // world, rank, world)

    return DataLoaders(
        {"classes": dataset.classes, "shape": tuple(train.images.shape[1:])},
        batches,
        {name: ImageBatches(split, test_batch, rank, world) for name, split in tests.items() if len(split.labels)},
        calibration,
        batches.batch_size,
    )


def _rows(split: Split, rows: Any) -> Split:
    return Split(split.images[rows], split.labels[rows])
