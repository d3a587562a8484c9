"""The batches of a set of scenes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.scenes import Augment, Centre, Scenes, collate, read_labels
from whitenorm_lab.tasks.segmentation.sets import SceneSet
from whitenorm_lab.training.batches import check_batch_size, draw_calibration_rows, seeded_generator
from whitenorm_lab.training.loaders import DataLoaders, FileLoader, TrainSampler, build_test_sampler

_T = TypeVar("_T")


def build_loaders(
    config: Segment, found: SceneSet, fill: Sequence[int], step: Callable[[], int], rank: int, world: int
) -> DataLoaders:
    """Batches for one process: random crops to train on, whole images to test on.

    Args:
        config: the run.
        found: the set.
        fill: the colour that images are enlarged with.
        step: how many steps are done.
        rank: the number of the process.
        world: how many there are.
    """
    numbers = _chosen(len(found.train), config)
    batch_size = check_batch_size(config.batch_size, len(numbers), world)
    crops = Scenes(found, found.train, Augment(config.crop, fill, config.scales, config.flip))
    # What population statistics are taken from has the size of what is trained on.
    centres = Scenes(found, found.train, Centre(config.crop, fill))
    opened = [FileLoader(crops, TrainSampler(numbers, batch_size, config.seed, step, rank, world), config, collate)]

    def in_order(scenes: Scenes, rows: Tensor, size: int) -> FileLoader:
        opened.append(FileLoader(scenes, build_test_sampler(rows, max(1, size // world), rank, world), config, collate))
        return opened[-1]

    def close() -> None:
        for loader in opened:
            loader.close()

    tests = {name: Scenes(found, spread(found.tests[name], config.test_images)) for name in _tested(config, found)}
    return DataLoaders(
        {"classes": [category.name for category in found.categories]},
        opened[0],
        {name: in_order(scenes, torch.arange(len(scenes)), config.test_batch) for name, scenes in tests.items()},
        lambda number: in_order(
            centres, numbers[draw_calibration_rows(len(numbers), number, config.seed, world)], batch_size
        ),
        batch_size,
        close,
    )


def spread(items: Sequence[_T], number: int | None) -> list[_T]:
    """So many of a sequence, at even distances; all of them if there are no more.

    Example::

        >>> spread("abcdefg", 3)
        ['a', 'd', 'g']
    """
    if number is None or number >= len(items):
        return list(items)
    return [items[i] for i in torch.linspace(0, len(items) - 1, number).round().long().tolist()]


def class_weights(found: SceneSet, balance: float) -> Tensor:
    """``share^-balance`` of each class, whose mean over the training pixels is 1; it reads all training label maps."""
    pixels = torch.zeros(IGNORE + 1, dtype=torch.float64)
    for pair in found.train:
        pixels += torch.bincount(read_labels(pair, found).flatten(), minlength=IGNORE + 1)
    shares = pixels[: len(found.categories)] / pixels[: len(found.categories)].sum()
    # A class that is not there weighs nothing.
    weights = torch.where(shares > 0, shares, torch.inf) ** -balance
    return (weights / (shares * weights).sum()).float()


def _chosen(number: int, config: Segment) -> Tensor:
    wanted = number if config.train_images is None else config.train_images
    if wanted > number:
        raise ValueError(f"expected train_images up to the {number} there are (got {wanted})")
    return torch.randperm(number, generator=seeded_generator(config.seed))[:wanted].sort().values


def _tested(config: Segment, found: SceneSet) -> list[str]:
    if config.validate and "validation" not in found.tests:
        raise ValueError(
            f"expected a set with validation images beside its test images (got {found.name}); leave --validate out"
        )
    return ["test", "validation"] if config.validate else ["test"]
