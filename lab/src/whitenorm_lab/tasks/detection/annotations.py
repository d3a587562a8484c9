"""COCO's annotation format: one JSON file with images, boxes, masks and categories, checked when it is read.

pycocotools draws the masks but does not read the file: for a damaged entry it raises a KeyError, or nothing at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors

from whitenorm_lab.checksum import parse_json
from whitenorm_lab.tasks.detection.entries import check_entry, describe_misfit, shorten

# Pixels by which a box or polygon may exceed its image: COCO's own coordinates are rounded. Boxes are then clipped.
_ROUNDING = 2.0


@dataclass
class AnnotatedImage:
    """An image file and its annotations: boxes as x1, y1, x2, y2, and masks as polygons or run lengths."""

    id: int
    file: Path
    width: int
    height: int
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    """From 1; 0 is the background."""
    areas: list[float] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    segmentations: list[Any] = field(default_factory=list)
    annotation_ids: list[int] = field(default_factory=list)
    """Used in error messages."""

    def __str__(self) -> str:
        return f"{self.file} (image {self.id})"

    def trainable(self) -> list[int]:
        """Return the indices of the annotations to train on: no crowds, and no boxes without area."""
        return [i for i, (x1, y1, x2, y2) in enumerate(self.boxes) if not self.crowd[i] and x1 < x2 and y1 < y2]

    def target(self, masks: bool, indices: Iterable[int] | None = None) -> dict[str, Tensor]:
        """Return boxes ``(n, 4)``, labels, areas and crowd flags ``(n,)``, and masks ``(n, H, W)`` if requested.

        Args:
            masks: draw the masks.
            indices: of the annotations; default: all.

        Example::

            >>> from pathlib import Path
            >>> outline = [[0, 0, 2, 0, 2, 2]]
            >>> image = AnnotatedImage(9, Path("9.jpg"), 4, 2, [[0, 0, 2, 2]], [3], [4.0], [False], [outline])
            >>> target = image.target(masks=True)
            >>> target["labels"], target["masks"].shape
            (tensor([3]), torch.Size([1, 2, 4]))
        """
        rows = list(range(len(self.boxes)) if indices is None else indices)
        boxes = torch.tensor([self.boxes[i] for i in rows], dtype=torch.float32).reshape(-1, 4)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(self.height, self.width)),
            "labels": torch.tensor([self.labels[i] for i in rows], dtype=torch.int64),
            "area": torch.tensor([self.areas[i] for i in rows], dtype=torch.float32),
            "iscrowd": torch.tensor([self.crowd[i] for i in rows], dtype=torch.int64),
        }
        if masks:
            empty = torch.zeros(0, self.height, self.width, dtype=torch.uint8)
            target["masks"] = tv_tensors.Mask(torch.stack([self._draw_mask(i) for i in rows]) if rows else empty)
        return target

    def _draw_mask(self, i: int) -> Tensor:
        """Return a mask ``(H, W)`` of 0 and 1."""
        from pycocotools import mask

        outline = self.segmentations[i]
        try:
            if isinstance(outline, list):
                outline = mask.merge(mask.frPyObjects(outline, self.height, self.width))
            elif isinstance(outline["counts"], list):
                outline = mask.frPyObjects(outline, self.height, self.width)
            pixels = torch.from_numpy(mask.decode(outline))
            if pixels.shape != (self.height, self.width):
                raise ValueError(f"of shape {tuple(pixels.shape)} for an image of {(self.height, self.width)}")
        # pycocotools has no exception types of its own.
        except Exception as error:
            raise OSError(
                f"expected polygons or run lengths as the segmentation of annotation {self.annotation_ids[i]} of "
                f"{self} (got {shorten(self.segmentations[i])}: {error}); correct it, or train without masks"
            ) from error
        return pixels


@dataclass(frozen=True)
class Coco:
    """Content of an annotation file: images in the order of their ids, and category names by label."""

    file: Path
    images: list[AnnotatedImage]
    names: tuple[str, ...]
    """The first is the background."""

    @property
    def classes(self) -> int:
        """Number of classifier outputs: categories and background."""
        return len(self.names)


def read_annotations(file: Path, folder: Path) -> Coco:
    """Read the annotations of the images in a folder. Labels count categories from 1, in the order of their ids.

    Boxes that exceed their image by rounding are clipped to it.

    Raises:
        OSError: a file is missing or not in COCO's format.
        ValueError: an entry lacks a field, has an impossible value, or contradicts other entries.
    """
    content = _read_content(file)
    images, categories = _read_images(content, file, folder), _read_categories(content, file)
    labels = {category: label for label, category in enumerate(sorted(categories), 1)}
    for index, annotation in enumerate(content["annotations"]):
        check_entry(annotation, index, "annotation", file)
        _add_annotation(annotation, images, labels, file)
    names = ("background", *(categories[category] for category in sorted(categories)))
    return Coco(file, [images[id_] for id_ in sorted(images)], names)


def _read_content(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes())
    except FileNotFoundError as error:
        raise OSError(f"expected annotations in {file} (got no such file)") from error
    except ValueError as error:
        raise OSError(f"expected {file} to be JSON (got a damaged file: {error}); download it again") from error
    parts = ("images", "annotations", "categories")
    missing = [part for part in parts if not isinstance(content, dict) or not isinstance(content.get(part), list)]
    if missing:
        raise OSError(f"expected the lists {', '.join(parts)} of COCO's format in {file} (got no {', '.join(missing)})")
    return content


def _read_images(content: dict[str, Any], file: Path, folder: Path) -> dict[int, AnnotatedImage]:
    listing = _Listing()
    images: dict[int, AnnotatedImage] = {}
    for index, entry in enumerate(content["images"]):
        check_entry(entry, index, "image", file)
        id_ = entry["id"]
        image = AnnotatedImage(id_, folder / entry["file_name"], entry["width"], entry["height"])
        if id_ in images:
            raise ValueError(f"expected unique image ids in {file} (got {id_} twice)")
        if image.file not in listing:
            raise OSError(
                f"expected {image.file}, image {id_} of {file} (got no such file); download it, or remove the image "
                "and its annotations"
            )
        images[id_] = image
    if not images:
        raise OSError(f"expected images in {file} (got none)")
    return images


class _Listing:
    """Set of existing files that lists each folder once: checking 100,000 files one by one is slow."""

    def __init__(self) -> None:
        self.folders: dict[Path, set[str]] = {}

    def __contains__(self, file: Path) -> bool:
        if file.parent not in self.folders:
            self.folders[file.parent] = set(os.listdir(file.parent)) if file.parent.is_dir() else set()
        return file.name in self.folders[file.parent]


def _read_categories(content: dict[str, Any], file: Path) -> dict[int, str]:
    categories: dict[int, str] = {}
    for index, entry in enumerate(content["categories"]):
        check_entry(entry, index, "category", file)
        if entry["id"] in categories:
            raise ValueError(f"expected unique category ids in {file} (got {entry['id']} twice)")
        categories[entry["id"]] = entry["name"]
    if not categories:
        raise OSError(f"expected categories in {file} (got none)")
    return categories


def _add_annotation(
    annotation: dict[str, Any], images: dict[int, AnnotatedImage], labels: dict[int, int], file: Path
) -> None:
    """Add an annotation to its image."""
    id_, image_id, category, box = (annotation[name] for name in ("id", "image_id", "category_id", "bbox"))
    outline = annotation.get("segmentation")
    if image_id not in images:
        raise ValueError(
            f"expected annotation {id_} of {file} to have the id of an image in the file (got image_id {image_id!r}); "
            "add the image, or remove the annotation"
        )
    if category not in labels:
        raise ValueError(
            f"expected annotation {id_} of image {image_id} to have the id of a category in {file} (got category_id "
            f"{category!r}); its categories are {min(labels)} to {max(labels)}"
        )
    image = images[image_id]
    corners = _clip_box(box, id_, image, file)
    if misfit := describe_misfit(outline, image.width, image.height, _ROUNDING):
        raise ValueError(
            f"expected the segmentation of annotation {id_} of {file} to fit {image} (got {misfit}); correct it, or "
            "remove it"
        )
    image.boxes.append(corners)
    image.labels.append(labels[category])
    image.areas.append(float(annotation.get("area", box[2] * box[3])))
    image.crowd.append(bool(annotation.get("iscrowd", 0)))
    image.segmentations.append(outline)
    image.annotation_ids.append(id_)


def _clip_box(box: list[float], id_: int, image: AnnotatedImage, file: Path) -> list[float]:
    """Return the corners x1, y1, x2, y2, clipped to the image."""
    x, y, width, height = box
    if min(x, y) < -_ROUNDING or x + width > image.width + _ROUNDING or y + height > image.height + _ROUNDING:
        raise ValueError(
            f"expected the bbox of annotation {id_} of {file} inside {image}, which has {image.width}×{image.height} "
            f"pixels (got x, y, width, height {shorten(box)})"
        )
    corners = (x, y, x + width, y + height)
    sides = (image.width, image.height) * 2
    return [min(max(float(value), 0.0), float(side)) for value, side in zip(corners, sides, strict=True)]
