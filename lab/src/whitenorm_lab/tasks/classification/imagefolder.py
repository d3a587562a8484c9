"""Batches of a folder of images, ``train/CLASS/…`` and ``val/CLASS/…``, read by several processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.shares import shares
from whitenorm_lab.training.batches import check_batch_size, draw_calibration_rows
from whitenorm_lab.training.loaders import DataLoaders, FileLoader, TrainSampler, build_test_sampler

# Of ImageNet's training images.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The share of an image's shorter side that the test crop takes: 224 of 256.
_CROP = 224 / 256


def build_loaders(config: Train, path: str, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
    """The batches of a folder for one process, normalised by ImageNet's mean and deviation, or to [-1, 1]."""
    folder = Path(path)
    train = _folder(folder / "train", _transform(config, config.augment))
    test = _folder(folder / "val", _transform(config, False))
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(
            f"expected the same classes in train/ and val/ of {folder} (got {len(train.classes)} and "
            f"{len(test.classes)}; only in one of them: {', '.join(differing[:5])})"
        )
    # The training images as tests see them.
    plain = copy(train)
    plain.transform = test.transform
    numbers, held_out = (share.sort().values for share in shares(len(train), config))
    batch_size = check_batch_size(config.batch_size, len(numbers), world)
    collate = partial(_stacked, config.image_size)
    opened = [FileLoader(train, TrainSampler(numbers, batch_size, config.seed, step, rank, world), config, collate)]

    def tested(images: ImageFolder, rows: Tensor) -> FileLoader:
        opened.append(FileLoader(images, build_test_sampler(rows, batch_size // world, rank, world), config, collate))
        return opened[-1]

    def close() -> None:
        for loader in opened:
            loader.close()

    tests = {"test": (test, torch.arange(len(test))[: config.test_images]), "validation": (plain, held_out)}
    return DataLoaders(
        {"classes": len(train.classes), "shape": (3, config.image_size, config.image_size)},
        opened[0],
        {name: tested(images, rows) for name, (images, rows) in tests.items() if len(rows)},
        lambda number: tested(plain, numbers[draw_calibration_rows(len(numbers), number, config.seed, world)]),
        batch_size,
        close,
    )


def _stacked(size: int, examples: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Examples as a batch; of none, as a process has where there are fewer than processes, an empty one."""
    if examples:
        return default_collate(examples)
    return [torch.empty(0, 3, size, size), torch.empty(0, dtype=torch.long)]


def _transform(config: Train, augment: bool) -> v2.Transform:
    size = config.image_size
    crops = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    if not augment:
        crops = [v2.Resize(round(size / _CROP)), v2.CenterCrop(size)]
    mean, deviation = ((0.5,) * 3, (0.5,) * 3) if config.normalize == "half" else (MEAN, DEVIATION)
    return v2.Compose([v2.ToImage(), *crops, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, deviation)])


def _folder(path: Path, transform: v2.Transform) -> _WholeImages:
    if not path.is_dir():
        raise OSError(
            f"expected a folder of images with train/ and val/ inside, and in each a folder a class (got no {path})"
        )
    try:
        return _WholeImages(str(path), transform)
    except FileNotFoundError as error:
        raise OSError(f"expected folders of images, one a class, in {path} ({error})") from error


class _WholeImages(ImageFolder):
    """A folder whose broken images are named."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        try:
            return super().__getitem__(i)
        # Pillow raises the others on damaged files, and on those that claim too many pixels.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise OSError(
                f"expected a whole image in {self.samples[i][0]} ({error}); get it again or remove it"
            ) from error
