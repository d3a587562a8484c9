"""Data loaders of a segmentation data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.datasets import SceneSet
from whitenorm_lab.tasks.segmentation.scenes import Augment, CenterCrop, SceneDataset, collate, read_labels
from whitenorm_lab.training.batches import build_generator
from whitenorm_lab.training.loaders import DataLoaders, FileLoaders

_T = TypeVar("_T")


def build_loaders(
    config: Segment, scene_set: SceneSet, fill: Sequence[int], step: Callable[[], int], rank: int, world: int
) -> DataLoaders:
    """Build the loaders of one process: random crops for training, whole images for tests.

    Args:
        config: the run's configuration.
        scene_set: the data set.
        fill: the color that small images are padded with.
        step: returns the global step.
        rank: index of the process.
        world: number of processes.
    """
    loaders = FileLoaders(config, _draw_train_rows(len(scene_set.train), config), step, rank, world, collate)
    train = SceneDataset(scene_set, scene_set.train, Augment(config.crop, fill, config.scales, config.flip))
    # Population statistics are computed from images of the training size.
    calibration = SceneDataset(scene_set, scene_set.train, CenterCrop(config.crop, fill))
    tests = {
        name: SceneDataset(scene_set, select_evenly(scene_set.tests[name], config.test_images))
        for name in _list_test_splits(config, scene_set)
    }
    return DataLoaders(
        {"classes": [category.name for category in scene_set.categories]},
        loaders.build_train(train),
        {
            name: loaders.build_test(scenes, torch.arange(len(scenes)), config.test_batch)
            for name, scenes in tests.items()
        },
        lambda count: loaders.build_calibration(calibration, count),
        loaders.batch_size,
        loaders.close,
    )


def select_evenly(items: Sequence[_T], count: int | None) -> list[_T]:
    """Select evenly spaced items of a sequence; all if ``count`` is None or more than there are.

    Example::

        >>> select_evenly("abcdefg", 3)
        ['a', 'd', 'g']
    """
    if count is None or count >= len(items):
        return list(items)
    return [items[i] for i in torch.linspace(0, len(items) - 1, count).round().long().tolist()]


def compute_class_weights(scene_set: SceneSet, balance: float) -> Tensor:
    """Compute ``share^-balance`` of each class from all training label maps; the mean over pixels is 1."""
    pixels = torch.zeros(IGNORE + 1, dtype=torch.float64)
    for pair in scene_set.train:
        pixels += torch.bincount(read_labels(pair, scene_set).flatten(), minlength=IGNORE + 1)
    shares = pixels[: len(scene_set.categories)] / pixels[: len(scene_set.categories)].sum()
    # A class without pixels has weight 0.
    weights = torch.where(shares > 0, shares, torch.inf) ** -balance
    return (weights / (shares * weights).sum()).float()


def _draw_train_rows(num_images: int, config: Segment) -> Tensor:
    size = num_images if config.train_images is None else config.train_images
    if size > num_images:
        raise ValueError(f"expected train_images up to the {num_images} there are (got {size})")
    return torch.randperm(num_images, generator=build_generator(config.seed))[:size].sort().values


def _list_test_splits(config: Segment, scene_set: SceneSet) -> list[str]:
    if config.validate and "validation" not in scene_set.tests:
        raise ValueError(
            f"expected a data set with validation images beside its test images (got {scene_set.name}); leave "
            "--validate out"
        )
    return ["test", "validation"] if config.validate else ["test"]
