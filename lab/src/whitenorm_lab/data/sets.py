"""Image data sets by name: their folders under the data root, their readers, and their origins."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whitenorm_lab import digits
from whitenorm_lab.data import files, mat
from whitenorm_lab.digits import Split

ROOT_VARIABLE = "WHITENORM_DATA"
"""The environment variable that names the data root."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Statistics of ImageNet's training images in [0, 1], which most trained networks normalize their inputs by."""


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, images as bytes. Without an official test split, all images are in ``train``."""

    name: str
    train: Split
    test: Split
    classes: int

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            if len(split.images) != len(split.labels):
                raise OSError(
                    f"expected a label for every image of {self.name} (got {len(split.labels)} labels for "
                    f"{len(split.images)} images); download the files again"
                )
            if len(split.labels) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < self.classes:
                raise OSError(
                    f"expected labels of {self.name} from 0 to {self.classes - 1} (got "
                    f"{int(split.labels.min())} to {int(split.labels.max())}); it is another data set"
                )


@dataclass(frozen=True)
class DatasetReader:
    """Readers of a data set by folder under the data root, any one of which suffices, and the set's origin."""

    folders: dict[str, Callable[[Path], tuple[Split, Split]]]
    classes: int
    origin: str


def root_folder(root: Path | None) -> Path | None:
    """Return the given data root, or ``$WHITENORM_DATA``; an empty variable counts as unset."""
    if root is None and (folder := os.environ.get(ROOT_VARIABLE)):
        return Path(folder)
    return root


def load(name: str, root: Path | None = None) -> Dataset:
    """Load a data set by name from the data root (by default ``$WHITENORM_DATA``).

    Example::

        >>> digits = load("digits")  # ships with the package
        >>> digits.train.images.shape, digits.classes
        (torch.Size([1297, 1, 8, 8]), 10)
    """
    if name == "digits":
        return Dataset(name, *digits.load_pixels(), 10)
    if name not in SETS:
        raise ValueError(f"expected a data set of {', '.join(['digits', *SETS])} (got {name!r})")
    reader, root = SETS[name], root_folder(root)
    if root is None:
        raise OSError(f"{name} needs a data root: pass --data or set ${ROOT_VARIABLE}. {_describe_layout(reader)}")
    for folder, read in reader.folders.items():
        if (root / folder).is_dir():
            try:
                return Dataset(name, *read(root / folder), reader.classes)
            except FileNotFoundError as error:
                raise OSError(f"{name}: {error.filename} is missing. {_describe_layout(reader)}") from error
    raise OSError(f"{name} is not under {root}. {_describe_layout(reader)}")


def _describe_layout(reader: DatasetReader) -> str:
    return f"Expected under the root: {' or '.join(reader.folders)}. {reader.origin}"


# In the training split of MNIST and of Fashion-MNIST.
_MNIST_IMAGES = 60_000
# Limit on the bytes of a face data set; the larger one has 12 million pixels of up to eight bytes.
_MAX_FACES_BYTES = 2**27


def _read_mnist(folder: Path) -> tuple[Split, Split]:
    def read_split(prefix: str) -> Split:
        images = files.read_idx(folder / f"{prefix}-images-idx3-ubyte", (28, 28), _MNIST_IMAGES)
        labels = files.read_idx(folder / f"{prefix}-labels-idx1-ubyte", (), _MNIST_IMAGES)
        return Split(images.unsqueeze(1), labels.long())

    return read_split("train"), read_split("t10k")


def _read_cifar_binary(folder: Path, train: list[str], test: str, count: int, label_bytes: int) -> tuple[Split, Split]:
    """Read records of label bytes, the last of which is the class, and 3,072 bytes of pixels."""

    def read_split(names: list[str], count: int) -> Split:
        records = torch.cat([files.read_records(folder / name, label_bytes + 3072, count) for name in names])
        return Split(records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].long())

    return read_split(train, count), read_split([test], 10000)


def _read_cifar_python(folder: Path, dataset: str, labels: bytes) -> tuple[Split, Split]:
    """Read the pickled batches, after a check of the MD5 checksums that torchvision lists."""
    # Imported here, because torchvision takes a second.
    from torchvision import datasets

    def read_split(checksums: list[list[str]]) -> Split:
        batches = [files.read_pickle(folder / name, md5) for name, md5 in checksums]
        images = torch.from_numpy(np.concatenate([batch[b"data"] for batch in batches]))
        return Split(images.view(-1, 3, 32, 32), torch.tensor([label for batch in batches for label in batch[labels]]))

    official = getattr(datasets, dataset)
    return read_split(official.train_list), read_split(official.test_list)


def _read_faces(path: Path, expected: str, read: Callable[[Path], tuple[Any, Any]]) -> tuple[Split, Split]:
    """Read grey faces of 32×32 pixels; people are numbered from 0 in the order of their labels. No test split."""
    try:
        images, labels = read(path)
        pixels = torch.from_numpy(np.array(images, np.uint8, order="C")).view(-1, 1, 32, 32)
    except FileNotFoundError:
        raise
    except Exception as error:
        # NumPy raises errors of any type on damaged files.
        raise files.invalid_file_error(path, f"{expected} (got {type(error).__name__}: {error})") from error
    _, people = np.unique(np.ravel(labels), return_inverse=True)
    train = Split(pixels, torch.from_numpy(people).long())
    return train, Split(train.images[:0], train.labels[:0])


def _read_yaleb(folder: Path) -> tuple[Split, Split]:
    def read(path: Path) -> tuple[Any, Any]:
        arrays = mat.read_arrays(files.read_bytes(path, _MAX_FACES_BYTES), _MAX_FACES_BYTES)
        return arrays["fea"], arrays["gnd"]

    return _read_faces(folder / "YaleB_32x32.mat", "a MATLAB file with fea and gnd", read)


def _read_pie(folder: Path) -> tuple[Split, Split]:
    def read(path: Path) -> tuple[Any, Any]:
        with zipfile.ZipFile(path) as archive:
            # zipfile decompresses no more of a member than the size in the archive's directory.
            size = sum(member.file_size for member in archive.infolist())
        if size > _MAX_FACES_BYTES:
            raise ValueError(f"its arrays have {size:,} bytes, more than the {_MAX_FACES_BYTES:,} allowed")
        with np.load(path) as content:
            return content["X"], content["y"]

    return _read_faces(folder / "pie_32x32.npz", "a NumPy archive with X and y", read)


_CIFAR = "From https://www.cs.toronto.edu/~kriz/cifar.html, the binary or the python version, unpacked."
SETS: dict[str, DatasetReader] = {
    "mnist": DatasetReader(
        {"MNIST/raw": _read_mnist}, 10, "torchvision.datasets.MNIST(root, download=True) creates it; plain or gzipped."
    ),
    "fashion-mnist": DatasetReader(
        {"FashionMNIST/raw": _read_mnist, "fashion-mnist": _read_mnist},
        10,
        "torchvision.datasets.FashionMNIST(root, download=True) creates it; Debian's package "
        "dataset-fashion-mnist has it under /usr/share/datasets.",
    ),
    "cifar10": DatasetReader(
        {
            "cifar-10-batches-bin": partial(
                _read_cifar_binary,
                train=[f"data_batch_{i}.bin" for i in range(1, 6)],
                test="test_batch.bin",
                count=10000,
                label_bytes=1,
            ),
            "cifar-10-batches-py": partial(_read_cifar_python, dataset="CIFAR10", labels=b"labels"),
        },
        10,
        _CIFAR,
    ),
    "cifar100": DatasetReader(
        {
            "cifar-100-binary": partial(
                _read_cifar_binary, train=["train.bin"], test="test.bin", count=50000, label_bytes=2
            ),
            "cifar-100-python": partial(_read_cifar_python, dataset="CIFAR100", labels=b"fine_labels"),
        },
        100,
        _CIFAR,
    ),
    "yaleb": DatasetReader(
        {"yaleb": _read_yaleb},
        38,
        "YaleB_32x32.mat (2,414 images) of Deng Cai's face sets, http://www.cad.zju.edu.cn/home/dengcai.",
    ),
    "pie": DatasetReader(
        {"pie": _read_pie},
        68,
        "The 11,554 images of 68 people of Deng Cai's face sets, http://www.cad.zju.edu.cn/home/dengcai, as "
        "pie_32x32.npz with X (11554, 32, 32) of bytes and y.",
    ),
}
"""The data sets of :func:`load` by name, with their folders under the data root and their origins."""
