"""Detection data sets: where their files are, their images and targets as examples, and batches."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.detection.annotations import AnnotatedImage, Coco, read_annotations
from whitenorm_lab.tasks.detection.config import FOLDER, Detection
from whitenorm_lab.training.batches import build_generator

_LAYOUT = (
    "annotations/instances_train2017.json, annotations/instances_val2017.json, train2017/ and val2017/ (or another "
    "year, or none), or instances.json and images/"
)


class Batch(NamedTuple):
    """Images ``(3, H, W)`` of bytes, of any sizes, and their targets."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


def collate(examples: list[tuple[Tensor, dict[str, Tensor]]]) -> Batch:
    """Return the examples as a batch, without stacking them."""
    return Batch([image for image, _ in examples], [target for _, target in examples])


class DetectionDataset(torch.utils.data.Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Images and targets.

    Args:
        images: the annotated images.
        masks: include masks in the targets.
        is_training: omit crowds and boxes without area; the test metric handles both.
        flip: flip half of the images.
    """

    def __init__(self, images: list[AnnotatedImage], masks: bool, is_training: bool, flip: bool) -> None:
        self.images, self.masks, self.is_training = images, masks, is_training
        self.transform = v2.RandomHorizontalFlip() if flip else nn.Identity()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        image = self.images[i]
        target = image.target(self.masks, image.trainable() if self.is_training else None)
        sample: tuple[Tensor, dict[str, Tensor]] = self.transform((_read_image(image), target))
        return sample


def _read_image(image: AnnotatedImage) -> Tensor:
    """Return an image ``(3, H, W)`` of bytes, whose size must be that of the annotations."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        # Check the header first: a few bytes can decode to gigabytes of pixels.
        with Image.open(image.file) as header:
            size = header.size
        pixels = decode_image(str(image.file), ImageReadMode.RGB) if size == (image.width, image.height) else None
    # Pillow's errors for a header, and torchvision's error for anything else.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, RuntimeError) as error:
        raise OSError(f"expected a complete image in {image} ({error}); download it again") from error
    if pixels is None:
        raise OSError(
            f"expected {image} to have the {image.width}×{image.height} pixels that its annotations state (got "
            f"{size[0]}×{size[1]}); they belong to another image"
        )
    return pixels


def read_datasets(config: Detection) -> tuple[Coco, Coco]:
    """Read the training and test annotations; the same object twice if the data set has one file."""
    folder = _find_folder(config)
    parts = []
    for split in ("train", "val"):
        files = sorted((folder / "annotations").glob(f"instances_{split}*.json"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ValueError(f"expected one {folder}/annotations/instances_{split}*.json (got {names})")
        parts += [read_annotations(file, folder / file.stem.removeprefix("instances_")) for file in files]
    if len(parts) == 2:
        train, test = parts
        _check_categories(train, test)
        return train, test
    if parts or not (folder / "instances.json").exists():
        raise OSError(f"expected {_LAYOUT} in {folder} (got {_describe_folder(folder)})")
    coco = read_annotations(folder / "instances.json", folder / "images")
    return coco, coco


def _check_categories(train: Coco, test: Coco) -> None:
    if train.names != test.names:
        differences = sorted(set(train.names) ^ set(test.names)) or ["none, but in another order"]
        raise ValueError(
            f"expected the same categories in {train.file} and {test.file} (got {train.classes - 1} and "
            f"{test.classes - 1}; only in one of them: {', '.join(differences[:5])})"
        )


def _find_folder(config: Detection) -> Path:
    if config.dataset.startswith(FOLDER):
        return Path(config.dataset.removeprefix(FOLDER))
    if config.dataset not in ("coco", "coco128"):
        raise ValueError(f"expected dataset to be coco, coco128 or {FOLDER}PATH (got {config.dataset!r})")
    root = root_folder(config.data)
    if root is None:
        raise OSError(f"{config.dataset} needs a data root with {config.dataset}/: pass --data or set ${ROOT_VARIABLE}")
    return root / config.dataset


def _describe_folder(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    return ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder"


def select_training_images(coco: Coco, config: Detection) -> list[AnnotatedImage]:
    """Return the images with trainable annotations, or a random subset of ``config.train_images`` of them."""
    images = [image for image in coco.images if image.trainable()]
    size = config.train_images or len(images)
    if not 0 < size <= len(images):
        raise ValueError(
            f"expected train_images up to the {len(images)} images with objects in {coco.file} (got "
            f"{config.train_images})"
        )
    rows = torch.randperm(len(images), generator=build_generator(config.seed))[:size]
    return [images[i] for i in rows.sort().values.tolist()]
