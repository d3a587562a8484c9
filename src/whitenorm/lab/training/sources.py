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
    tests: dict[str, Any]
    """Those of "test" and "validation" that there are images for."""
    calibration: Callable[[int], Any]
    """Batches, as in training, of so many training images, which are not augmented."""
    normalisation: tuple[Tensor, Tensor] | None
    close: Callable[[], object] = lambda: None


def source(config: Train, dataset: Dataset | None, step: Callable[[], int], rank: int, world: int) -> Source:
    """The batches that a configuration asks for, or those of a data set at hand."""
    if dataset is None and config.dataset.startswith(_FOLDER):
        from whitenorm.lab.training import imagefolder

        return imagefolder.source(config, config.dataset.removeprefix(_FOLDER), step, rank, world)
    dataset = data.load(config.dataset, config.data) if dataset is None else dataset
    chosen, held_out = shares(len(dataset.train.labels), config)
    # All images in the order they have, where all are trained on: without a copy.
    train = dataset.train if len(chosen) == len(dataset.train.labels) else _rows(dataset.train, chosen)
    tests = {"test": _rows(dataset.test, slice(config.test_images)), "validation": _rows(dataset.train, held_out)}
    batches = TrainBatches(train, config.batch_size, config.seed, config.augment, step, rank, world)
    test_batch = min(TEST_BATCH, config.batch_size * 4 or TEST_BATCH)

    def calibration(number: int) -> TestBatches:
        part = _rows(train, calibration_rows(len(train.labels), number, config.seed))
        return TestBatches(part, batches.batch_size // world, rank, world)

    return Source(
        dataset.classes,
        tuple(train.images.shape[1:]),  # type: ignore[arg-type]
        batches.batch_size,
        batches,
        {name: TestBatches(split, test_batch, rank, world) for name, split in tests.items() if len(split.labels)},
        calibration,
        normalisation(train.images, config.normalize),
    )


def shares(number: int, config: Train) -> tuple[Tensor, Tensor]:
    """Which of so many images are trained on and which are held out, as the seed draws them."""
    held_out = config.validation_images
    train = number - held_out if config.train_images is None else config.train_images
    if train < 1 or train + held_out > number:
        asked = "" if not held_out else f" and validation_images={held_out}"
        raise ValueError(
            f"expected train_images up to the {number} there are, less those held out (got {config.train_images}"
            f"{asked})"
        )
    order = torch.randperm(number, generator=generator(config.seed))
    return order[:train], order[number - held_out :]


def calibration_rows(number: int, wanted: int, seed: int) -> Tensor:
    """Which of so many training images population statistics are taken from; the same at every test."""
    return torch.randperm(number, generator=generator(seed, "recalibrate"))[:wanted]


def _rows(split: Split, rows: Any) -> Split:
    return Split(split.images[rows], split.labels[rows])
