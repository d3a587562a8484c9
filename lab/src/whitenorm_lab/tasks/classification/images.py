"""Batches of an image data set in memory, and their augmentation and normalization on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from whitenorm_lab.data import Dataset, Split
from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.training.batches import (
    StepBatches,
    TestBatches,
    build_generator,
    check_batch_size,
    draw_calibration_rows,
    shuffle_into_batches,
    split_in_order,
)
from whitenorm_lab.training.loaders import DataLoaders

PADDING = 4
_MAX_TEST_BATCH = 500


class Batch(NamedTuple):
    """Images ``(N, C, H, W)``, labels ``(N,)``, and the draws ``(N, 3)`` of :func:`crop_and_flip`, if any."""

    images: Tensor
    labels: Tensor
    draws: Tensor | None = None


class TrainBatches(StepBatches):
    """Training batches of the current epoch, from the global step on.

    An incomplete last batch is dropped. Each process gets its share of every batch, so that all processes together see
    the same images as a single one.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        augment: bool,
        step: Callable[[], int],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(step)
        self.batch_size = check_batch_size(batch_size, len(split.labels), world)
        self.split, self.seed, self.augment = split, seed, augment
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.split.labels) // self.batch_size

    def order(self, epoch: int) -> list[Tensor]:
        return shuffle_into_batches(torch.arange(len(self.split.labels)), self.batch_size, self.seed, epoch)

    def batch(self, epoch: int, i: int, part: Tensor) -> Batch:
        # Drawn for the batch of all processes, each of which uses its rows.
        draws = self._draw_crops(epoch, i)[self.rank :: self.world] if self.augment else None
        rows = part[self.rank :: self.world]
        is_whole_split = len(rows) == len(self.split.labels)
        images, labels = self.split if is_whole_split else (self.split.images[rows], self.split.labels[rows])
        return Batch(images, labels, draws)

    def _draw_crops(self, epoch: int, i: int) -> Tensor:
        limits = torch.tensor([2 * PADDING + 1, 2 * PADDING + 1, 2])
        return (torch.rand(self.batch_size, 3, generator=build_generator(self.seed, epoch, i)) * limits).long()


class ImageBatches(TestBatches):
    """Images in order, once, in batches of nearly equal size; every process has the same number of batches."""

    def __init__(self, split: Split, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.split = split
        super().__init__(split_in_order(torch.arange(len(split.labels)), batch_size, rank, world), self._build_batch)

    def _build_batch(self, rows: Tensor) -> Batch:
        return Batch(self.split.images[rows], self.split.labels[rows])


def build_loaders(config: Train, dataset: Dataset, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
    """Build the loaders of one process for a data set in memory; ``train.split`` has the training images."""
    rows, validation_rows = draw_train_split(len(dataset.train.labels), config)
    # If all images are trained on, in their original order and without a copy.
    train = dataset.train if len(rows) == len(dataset.train.labels) else _select_rows(dataset.train, rows)
    tests = {
        "test": _select_rows(dataset.test, slice(config.test_images)),
        "validation": _select_rows(dataset.train, validation_rows),
    }
    batches = TrainBatches(train, config.batch_size, config.seed, config.augment, step, rank, world)
    test_batch = min(_MAX_TEST_BATCH, config.batch_size * 4 or _MAX_TEST_BATCH)

    def build_calibration(count: int) -> ImageBatches:
        split = _select_rows(train, draw_calibration_rows(len(train.labels), count, config.seed, world))
        return ImageBatches(split, batches.batch_size // world, rank, world)

    return DataLoaders(
        {"classes": dataset.classes, "shape": tuple(train.images.shape[1:])},
        batches,
        {name: ImageBatches(split, test_batch, rank, world) for name, split in tests.items() if len(split.labels)},
        build_calibration,
        batches.batch_size,
    )


def _select_rows(split: Split, rows: Any) -> Split:
    return Split(split.images[rows], split.labels[rows])


def draw_train_split(num_images: int, config: Train) -> tuple[Tensor, Tensor]:
    """Draw the rows of the training set to train on and to hold out for validation, by the run's seed.

    Example::

        >>> [len(rows) for rows in draw_train_split(100, Train(validation_images=20))]
        [80, 20]
    """
    num_validation = config.validation_images
    num_train = num_images - num_validation if config.train_images is None else config.train_images
    if num_train < 1 or num_train + num_validation > num_images:
        validation = "" if not num_validation else f" and validation_images={num_validation}"
        raise ValueError(
            f"expected train_images, with validation_images, up to the {num_images} training images there are (got "
            f"{config.train_images}{validation})"
        )
    order = torch.randperm(num_images, generator=build_generator(config.seed))
    return order[:num_train], order[num_images - num_validation :]


def crop_and_flip(images: Tensor, draws: Tensor) -> Tensor:
    """Crop each image from its zero-padded version and flip it or not, with one gather for the batch.

    Args:
        images: ``(N, C, H, W)``.
        draws: ``(N, 3)``: top and left of the crop, from 0 to twice the padding, and 0 or 1 for the flip.

    Example::

        >>> image = torch.arange(4.0).view(1, 1, 2, 2)
        >>> crop_and_flip(image, torch.tensor([[4, 4, 1]]))
        tensor([[[[1., 0.],
                  [3., 2.]]]])
    """
    count, _, height, width = images.shape
    # All positions of the crop, as a view.
    windows = F.pad(images, [PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
    top, left, flip = draws.unbind(1)
    crops = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(flip.bool().view(-1, 1, 1, 1), crops.flip(-1), crops)


def resize(images: Tensor, size: int) -> Tensor:
    """Resize images to squares of ``size`` pixels, bilinearly, with antialiasing if they shrink.

    Example::

        >>> resize(torch.randn(2, 3, 32, 32), 96).shape
        torch.Size([2, 3, 96, 96])
    """
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=size < images.shape[-1])


def draw_mixup(alpha: float, *key: int, batch_size: int) -> tuple[float, Tensor]:
    """Draw mixup's weight from Beta(α, α), and the index of the image that each image is mixed with, by a key.

    Example::

        >>> weight, partners = draw_mixup(0.2, 0, 1, batch_size=3)
        >>> 0 <= weight <= 1, sorted(partners.tolist())
        (True, [0, 1, 2])
    """
    generator = build_generator(*key, "mixup")
    # torch.distributions.Beta takes no generator.
    weight = np.random.default_rng(generator.initial_seed()).beta(alpha, alpha)
    return float(weight), torch.randperm(batch_size, generator=generator)


def compute_normalization(images: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the mean and the factor to normalize images of bytes with, in the shape ``(C, 1, 1)`` or ``(C, H, W)``.

    Example::

        >>> mean, factor = compute_normalization(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2), "channel")
        >>> mean.item(), 1 / factor.item()
        (127.5, 127.49999...)
    """
    if kind == "none":
        return torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1 / 255)
    if kind == "half":
        return torch.full((1, 1, 1), 127.5), torch.full((1, 1, 1), 1 / 127.5)
    total = torch.zeros(images.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in images.split(4096):
        part = part.double()
        total, squares = total + part.sum(0), squares + part.square().sum(0)
    mean, square = total / len(images), squares / len(images)
    if kind == "channel":
        mean, square = (value.mean((1, 2), keepdim=True) for value in (mean, square))
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    # A pixel with the same value in all images becomes 0.
    factor = torch.where(deviation > 0, 1 / deviation, 0.0) if kind != "pixel-mean" else torch.full_like(mean, 1 / 255)
    return mean.float(), factor.float()
