"""The images of a set as examples: where they lie, read from their files, and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.detection.annotations import Coco, Picture, read
from whitenorm_lab.tasks.detection.config import FOLDER, Detection
from whitenorm_lab.training.batches import seeded_generator

_WANTED = (
    "annotations/instances_train2017.json, annotations/instances_val2017.json, train2017/ and val2017/ (or without a "
    "year or with another), or instances.json and images/"
)


class Batch(NamedTuple):
    """Images ``(3, H, W)`` as bytes, of any sizes, and what is in each."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


def collate(examples: list[tuple[Tensor, dict[str, Tensor]]]) -> Batch:
    """Examples as they are, in a batch."""
    return Batch([image for image, _ in examples], [target for _, target in examples])


class Pictures:
    """Examples by number.

    Args:
        pictures: the images.
        masks: whether their masks are asked for.
        training: without crowds and boxes without area, which tests know how to count.
        flip: half of the images, as torch draws.
    """

    def __init__(self, pictures: list[Picture], masks: bool, training: bool, flip: bool) -> None:
        self.pictures, self.masks, self.training, self.flip = pictures, masks, training, flip

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        picture = self.pictures[i]
        image = _image(picture)
        target = picture.target(self.masks, picture.learnable() if self.training else None)
        return flipped(image, target) if self.flip and torch.rand(()) < 0.5 else (image, target)


def flipped(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """An image mirrored, with what is in it.

    Example::

        >>> image, target = flipped(torch.arange(4).view(1, 1, 4), {"boxes": torch.tensor([[0.0, 0, 1, 1]])})
        >>> image[0, 0].tolist(), target["boxes"].tolist()
        ([3, 2, 1, 0], [[3.0, 0.0, 4.0, 1.0]])
    """
    x1, y1, x2, y2 = target["boxes"].unbind(1)
    width = image.shape[-1]
    changed = {"boxes": torch.stack([width - x2, y1, width - x1, y2], 1)}
    if "masks" in target:
        changed["masks"] = target["masks"].flip(-1)
    return image.flip(-1), {**target, **changed}


def _image(picture: Picture) -> Tensor:
    """``(3, H, W)`` in bytes, as large as the annotations say."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        # By the header, as a few bytes can decode to gigabytes of pixels.
        with Image.open(picture.file) as header:
            size = header.size
        image = decode_image(str(picture.file), ImageReadMode.RGB) if size == (picture.width, picture.height) else None
    # Pillow's errors of a header, and torchvision's error of anything in a file.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, RuntimeError) as error:
        raise OSError(f"expected a whole image in {picture} ({error}); get it again") from error
    if image is None:
        raise OSError(
            f"expected {picture} to have the {picture.width}×{picture.height} pixels that its annotations say (got "
            f"{size[0]}×{size[1]}); they are of another image"
        )
    return image


def sets(config: Detection) -> tuple[Coco, Coco]:
    """What a configuration trains and tests on. A set of one file is both."""
    folder = _folder(config)
    parts = []
    for split in ("train", "val"):
        found = sorted((folder / "annotations").glob(f"instances_{split}*.json"))
        if len(found) > 1:
            raise ValueError(
                f"expected one {folder}/annotations/instances_{split}*.json (got {', '.join(f.name for f in found)})"
            )
        parts += [read(file, folder / file.stem.removeprefix("instances_")) for file in found]
    if len(parts) == 2:
        return _alike(parts[0], parts[1])
    if parts or not (folder / "instances.json").exists():
        raise OSError(f"expected {_WANTED} in {folder} (got {_there(folder)})")
    whole = read(folder / "instances.json", folder / "images")
    return whole, whole


def _alike(train: Coco, test: Coco) -> tuple[Coco, Coco]:
    if train.names != test.names:
        differing = sorted(set(train.names) ^ set(test.names)) or ["the same in another order"]
        raise ValueError(
            f"expected the same categories in {train.file} and {test.file} (got {train.classes - 1} and "
            f"{test.classes - 1}; only in one of them: {', '.join(differing[:5])})"
        )
    return train, test


def _folder(config: Detection) -> Path:
    if config.dataset.startswith(FOLDER):
        return Path(config.dataset.removeprefix(FOLDER))
    if config.dataset not in ("coco", "coco128"):
        raise ValueError(f"expected dataset to be coco, coco128 or {FOLDER}PATH (got {config.dataset!r})")
    root = root_folder(config.data)
    if root is None:
        raise OSError(f"{config.dataset} needs a data root with {config.dataset}/: pass --data or set ${ROOT_VARIABLE}")
    return root / config.dataset


def _there(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    return ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder"


def trained(coco: Coco, config: Detection) -> list[Picture]:
    """The images with something to learn from; of them those that the seed draws, if not all are asked for."""
    found = [picture for picture in coco.pictures if picture.learnable()]
    number = config.train_images or len(found)
    if not 0 < number <= len(found):
        raise ValueError(
            f"expected train_images up to the {len(found)} of {coco.file} that have objects (got {config.train_images})"
        )
    drawn = torch.randperm(len(found), generator=seeded_generator(config.seed))[:number]
    return [found[i] for i in drawn.sort().values.tolist()]
