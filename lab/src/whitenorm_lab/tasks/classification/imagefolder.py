"""Data loaders of an image folder, ``train/CLASS/…`` and ``val/CLASS/…``."""

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

from whitenorm_lab.data import IMAGENET_MEAN, IMAGENET_STD
from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.images import draw_train_split
from whitenorm_lab.training.loaders import DataLoaders, FileLoaders

# Fraction of an image's shorter side in the test crop.
_CROP_FRACTION = 224 / 256


def build_loaders(config: Train, path: str, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
    """Build the loaders of one process; images are normalized by ImageNet's mean and deviation, or to [-1, 1]."""
    folder = Path(path)
    train = _open_folder(folder / "train", _build_transform(config, config.augment))
    test = _open_folder(folder / "val", _build_transform(config, False))
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(
            f"expected the same classes in train/ and val/ of {folder} (got {len(train.classes)} and "
            f"{len(test.classes)}; only in one of them: {', '.join(differing[:5])})"
        )
    # For validation and calibration.
    train_without_augmentation = copy(train)
    train_without_augmentation.transform = test.transform
    rows, validation_rows = (part.sort().values for part in draw_train_split(len(train), config))
    loaders = FileLoaders(config, rows, step, rank, world, partial(_collate, config.image_size))
    tests = {
        "test": (test, torch.arange(len(test))[: config.test_images]),
        "validation": (train_without_augmentation, validation_rows),
    }
    return DataLoaders(
        {"classes": len(train.classes), "shape": (3, config.image_size, config.image_size)},
        loaders.build_train(train),
        {name: loaders.build_test(images, rows) for name, (images, rows) in tests.items() if len(rows)},
        lambda count: loaders.build_calibration(train_without_augmentation, count),
        loaders.batch_size,
        loaders.close,
    )


def _collate(size: int, examples: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Collate examples; the list is empty if a test batch has fewer images than there are processes."""
    if examples:
        return default_collate(examples)
    return [torch.empty(0, 3, size, size), torch.empty(0, dtype=torch.long)]


def _build_transform(config: Train, augment: bool) -> v2.Transform:
    size = config.image_size
    crops = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    if not augment:
        crops = [v2.Resize(round(size / _CROP_FRACTION)), v2.CenterCrop(size)]
    mean, std = ((0.5,) * 3, (0.5,) * 3) if config.normalize == "half" else (IMAGENET_MEAN, IMAGENET_STD)
    return v2.Compose([v2.ToImage(), *crops, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


def _open_folder(path: Path, transform: v2.Transform) -> _CheckedImageFolder:
    if not path.is_dir():
        raise OSError(
            f"expected a folder with train/ and val/, each with one folder of images per class (got no {path})"
        )
    try:
        return _CheckedImageFolder(str(path), transform)
    except FileNotFoundError as error:
        raise OSError(f"expected one folder of images per class in {path} ({error})") from error


class _CheckedImageFolder(ImageFolder):
    """An image folder whose error for a damaged image names the file."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        try:
            return super().__getitem__(i)
        # Pillow's errors for damaged images, and for images with too many pixels.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise OSError(
                f"expected a complete image in {self.samples[i][0]} ({error}); download it again or remove it"
            ) from error
