"""COCO's annotation format: images, boxes, masks and categories of one JSON file, checked as they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whitenorm_lab.checksum import parse_json
from whitenorm_lab.tasks.detection.entries import check, describe_misfit, short

# Pixels that a box or a polygon may lie outside its image: COCO's own are rounded, and then cut to the image.
_ROUNDING = 2.0


@dataclass
class Picture:
    """An image and what is in it: boxes as x1, y1, x2, y2, and masks as polygons or run lengths."""

    id: int
    file: Path
    width: int
    height: int
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    """From 1: 0 is the background."""
    areas: list[float] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    segmentations: list[Any] = field(default_factory=list)
    annotations: list[int] = field(default_factory=list)
    """Their ids, to name them by."""

    def __str__(self) -> str:
        return f"{self.file} (image {self.id})"

    def learnable(self) -> list[int]:
        """The numbers of those that a net can learn from: no crowds, and no boxes without area."""
        return [i for i, (x1, y1, x2, y2) in enumerate(self.boxes) if not self.crowd[i] and x1 < x2 and y1 < y2]

    def target(self, masks: bool, only: Iterable[int] | None = None) -> dict[str, Tensor]:
        """Boxes ``(n, 4)``, labels, areas and crowds ``(n,)``, and masks ``(n, H, W)`` if asked for.

        Example::

            >>> from pathlib import Path
            >>> picture = Picture(9, Path("9.jpg"), 4, 2, [[0, 0, 2, 2]], [3], [4.0], [False], [[[0, 0, 2, 0, 2, 2]]])
            >>> target = picture.target(masks=True)
            >>> target["labels"], target["masks"].shape
            (tensor([3]), torch.Size([1, 2, 4]))
        """
        rows = list(range(len(self.boxes)) if only is None else only)
        target = {
            "boxes": torch.tensor([self.boxes[i] for i in rows], dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor([self.labels[i] for i in rows], dtype=torch.int64),
            "area": torch.tensor([self.areas[i] for i in rows], dtype=torch.float32),
            "iscrowd": torch.tensor([self.crowd[i] for i in rows], dtype=torch.int64),
        }
        if masks:
            shape = (len(rows), self.height, self.width)
            drawn = [self._mask(i) for i in rows]
            target["masks"] = torch.stack(drawn) if drawn else torch.zeros(shape, dtype=torch.uint8)
        return target

    def _mask(self, i: int) -> Tensor:
        """``(H, W)`` of 0 and 1."""
        from pycocotools import mask

        outline = self.segmentations[i]
        try:
            if isinstance(outline, list):
                outline = mask.merge(mask.frPyObjects(outline, self.height, self.width))
            elif isinstance(outline["counts"], list):
                outline = mask.frPyObjects(outline, self.height, self.width)
            drawn = torch.from_numpy(mask.decode(outline))
            if drawn.shape != (self.height, self.width):
                raise ValueError(f"of {tuple(drawn.shape)} for an image of {(self.height, self.width)}")
        # pycocotools knows no errors of its own.
        except Exception as error:
            raise OSError(
                f"expected polygons or run lengths as the segmentation of annotation {self.annotations[i]} of {self} "
                f"(got {short(self.segmentations[i])}: {error}); mend it, or train without masks"
            ) from error
        return drawn


@dataclass(frozen=True)
class Coco:
    """What one file of annotations says: its pictures in the order of their ids, and names of categories by label."""

    file: Path
    pictures: list[Picture]
    names: tuple[str, ...]
    """The first one is that of the background."""

    @property
    def classes(self) -> int:
        """Outputs of a classifier: the categories and the background."""
        return len(self.names)


def read(file: Path, images: Path) -> Coco:
    """Annotations of the images in a folder. Categories are labels from 1, in the order of their ids.

    Boxes are cut to their image, of which they may lie outside by rounding.

    Raises:
        OSError: a file is not there or not of COCO's form.
        ValueError: an entry lacks a field, has a value that cannot be, or contradicts the rest.
    """
    content = _content(file)
    pictures, categories = _pictures(content, file, images), _categories(content, file)
    labels = {number: label for label, number in enumerate(sorted(categories), 1)}
    for place, annotation in enumerate(content["annotations"]):
        check(annotation, place, "annotation", file)
        _add(annotation, pictures, labels, file)
    names = ("background", *(categories[number] for number in sorted(categories)))
    return Coco(file, [pictures[number] for number in sorted(pictures)], names)


def _content(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes())
    except FileNotFoundError as error:
        raise OSError(f"expected annotations in {file} (got no such file)") from error
    except ValueError as error:
        raise OSError(f"expected {file} to be JSON (got a broken file: {error}); get it again") from error
    parts = ("images", "annotations", "categories")
    missing = [part for part in parts if not isinstance(content, dict) or not isinstance(content.get(part), list)]
    if missing:
        raise OSError(f"expected lists of {', '.join(parts)} in {file}, COCO's form (got no {', '.join(missing)})")
    return content


def _pictures(content: dict[str, Any], file: Path, images: Path) -> dict[int, Picture]:
    there = _Listing()
    pictures: dict[int, Picture] = {}
    for place, entry in enumerate(content["images"]):
        check(entry, place, "image", file)
        number = entry["id"]
        picture = Picture(number, images / entry["file_name"], entry["width"], entry["height"])
        if number in pictures:
            raise ValueError(f"expected an id of its own for every image of {file} (got {number} twice)")
        if picture.file not in there:
            raise OSError(
                f"expected {picture.file}, image {number} of {file} (got no such file); get it, or remove the image "
                "and its annotations"
            )
        pictures[number] = picture
    if not pictures:
        raise OSError(f"expected images in {file} (got none)")
    return pictures


class _Listing:
    """Which files there are, a look at each folder: to ask for 100,000 one by one takes long."""

    def __init__(self) -> None:
        self.folders: dict[Path, set[str]] = {}

    def __contains__(self, file: Path) -> bool:
        if file.parent not in self.folders:
            self.folders[file.parent] = set(os.listdir(file.parent)) if file.parent.is_dir() else set()
        return file.name in self.folders[file.parent]


def _categories(content: dict[str, Any], file: Path) -> dict[int, str]:
    categories: dict[int, str] = {}
    for place, entry in enumerate(content["categories"]):
        check(entry, place, "category", file)
        number = entry["id"]
        if number in categories:
            raise ValueError(f"expected an id of its own for every category of {file} (got {number} twice)")
        categories[number] = entry["name"]
    if not categories:
        raise OSError(f"expected categories in {file} (got none)")
    return categories


def _add(annotation: dict[str, Any], pictures: dict[int, Picture], labels: dict[int, int], file: Path) -> None:
    """One annotation, to the picture it is of."""
    number, image, category, box = (annotation[name] for name in ("id", "image_id", "category_id", "bbox"))
    outline = annotation.get("segmentation")
    if image not in pictures:
        raise ValueError(
            f"expected annotation {number} of {file} to be of an image that the file has (got image_id {image!r}); add "
            "the image, or remove the annotation"
        )
    if category not in labels:
        raise ValueError(
            f"expected a category that {file} has for annotation {number} of image {image} (got category_id "
            f"{category!r}); its categories are {min(labels)} to {max(labels)}"
        )
    picture = pictures[image]
    corners = _box(box, number, picture, file)
    if words := describe_misfit(outline, picture.width, picture.height, _ROUNDING):
        raise ValueError(
            f"expected a segmentation of annotation {number} of {file} that fits {picture} (got {words}); mend it, or "
            "remove it"
        )
    picture.boxes.append(corners)
    picture.labels.append(labels[category])
    picture.areas.append(float(annotation.get("area", box[2] * box[3])))
    picture.crowd.append(bool(annotation.get("iscrowd", 0)))
    picture.segmentations.append(outline)
    picture.annotations.append(number)


def _box(box: list[float], number: int, picture: Picture, file: Path) -> list[float]:
    """Corners x1, y1, x2, y2, cut to the image."""
    x, y, width, height = box
    if min(x, y) < -_ROUNDING or x + width > picture.width + _ROUNDING or y + height > picture.height + _ROUNDING:
        raise ValueError(
            f"expected the bbox of annotation {number} of {file} inside {picture}, which has {picture.width}×"
            f"{picture.height} pixels (got x, y, width, height {short(box)})"
        )
    corners = (x, y, x + width, y + height)
    sides = (picture.width, picture.height) * 2
    return [min(max(float(value), 0.0), float(side)) for value, side in zip(corners, sides, strict=True)]
