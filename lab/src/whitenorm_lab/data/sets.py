"""The sets: where each lies under the data root, how it is read, and where it comes from."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whitenorm_lab import digits
from whitenorm_lab.data import files, mat
from whitenorm_lab.digits import Split

ROOT_VARIABLE = "WHITENORM_DATA"
"""The environment variable that names the data root."""


@dataclass(frozen=True)
class Dataset:
    """A set in memory, images as bytes. Where there is no official test split, all images are in ``train``."""

    name: str
    train: Split
    test: Split
    classes: int

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            if len(split.images) != len(split.labels):
                raise OSError(
                    f"expected a label for every image of {self.name} (got {len(split.labels)} labels for "
                    f"{len(split.images)} images); get the files again"
                )
            if len(split.labels) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < self.classes:
                raise OSError(
                    f"expected labels of {self.name} from 0 to {self.classes - 1} (got "
                    f"{int(split.labels.min())} to {int(split.labels.max())}); it is another set"
                )


@dataclass(frozen=True)
class DatasetReader:
    """How a set is read, the folders under the root of which it needs one, and where it comes from."""

    folders: dict[str, Callable[[Path], tuple[Split, Split]]]
    classes: int
    origin: str


def root_folder(root: Path | None) -> Path | None:
    """Return the given data root, or that of the environment, where an empty variable counts as unset."""
    if root is None and (named := os.environ.get(ROOT_VARIABLE)):
        return Path(named)
    return root


def load(name: str, root: Path | None = None) -> Dataset:
    """A set by name, from the data root (by default ``$WHITENORM_DATA``).

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
        raise OSError(f"{name} needs a data root: pass --data or set ${ROOT_VARIABLE}. {_help(reader)}")
    for folder, read in reader.folders.items():
        if (root / folder).is_dir():
            try:
                return Dataset(name, *read(root / folder), reader.classes)
            except FileNotFoundError as error:
                raise OSError(f"{name}: {error.filename} is missing. {_help(reader)}") from error
    raise OSError(f"{name} is not under {root}. {_help(reader)}")


def _help(reader: DatasetReader) -> str:
    return f"Expected under the root: {' or '.join(reader.folders)}. {reader.origin}"


# In a split of MNIST and Fashion-MNIST.
_MNIST_IMAGES = 60_000
# Bytes of all arrays of a set of faces: the larger one has 12 million pixels, of up to eight bytes.
_LARGEST_FACES = 2**27


def _mnist(folder: Path) -> tuple[Split, Split]:
    def split(prefix: str) -> Split:
        images = files.idx(folder / f"{prefix}-images-idx3-ubyte", (28, 28), _MNIST_IMAGES)
        labels = files.idx(folder / f"{prefix}-labels-idx1-ubyte", (), _MNIST_IMAGES)
        return Split(images.unsqueeze(1), labels.long())

    return split("train"), split("t10k")


def _cifar_binary(train: list[str], test: str, count: int, label_bytes: int) -> Callable[[Path], tuple[Split, Split]]:
    """Records of label bytes, of which the last is the class, and 3,072 of pixels."""

    def split(folder: Path, names: list[str]) -> Split:
        width = label_bytes + 3072
        records = torch.cat([files.rows(folder / name, width, count if name != test else 10000) for name in names])
        return Split(records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].long())

    return lambda folder: (split(folder, train), split(folder, [test]))


def _cifar_python(train: list[str], test: str, labels: bytes) -> Callable[[Path], tuple[Split, Split]]:
    def split(folder: Path, names: list[str]) -> Split:
        batches = [_cifar_batch(folder / name, labels) for name in names]
        images, numbers = (torch.from_numpy(np.concatenate(part)) for part in zip(*batches, strict=True))
        return Split(images.view(-1, 3, 32, 32), numbers)

    return lambda folder: (split(folder, train), split(folder, [test]))


def _cifar_batch(path: Path, labels: bytes) -> tuple[Any, Any]:
    """Rows of bytes, and as many labels."""
    batch = files.pickled(path)
    rows, numbers = batch.get(b"data"), batch.get(labels)
    rows_fit = isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.shape[1:] == (3072,)
    numbers_fit = isinstance(numbers, list) and all(type(number) is int and 0 <= number < 100 for number in numbers)
    if rows is None or numbers is None or not rows_fit or not numbers_fit or len(rows) != len(numbers):
        raise files.broken(path, f"a batch with rows of 3,072 bytes in data, and a label for each in {labels.decode()}")
    return rows, np.array(numbers, np.int64)


def _faces(path: Path, kind: str, read: Callable[[Path], tuple[Any, Any]]) -> tuple[Split, Split]:
    """Grey faces of 32×32 with the people numbered from 0 in the order of their labels; no test split."""
    try:
        images, labels = read(path)
        pixels = torch.from_numpy(np.array(images, np.uint8, order="C")).view(-1, 1, 32, 32)
    except FileNotFoundError:
        raise
    except Exception as error:
        # NumPy raises anything on bytes that are not its own.
        raise files.broken(path, f"{kind} (got {type(error).__name__}: {error})") from error
    _, people = np.unique(np.ravel(labels), return_inverse=True)
    whole = Split(pixels, torch.from_numpy(people).long())
    return whole, Split(whole.images[:0], whole.labels[:0])


def _yaleb(folder: Path) -> tuple[Split, Split]:
    def read(path: Path) -> tuple[Any, Any]:
        content = mat.arrays(files.read(path, _LARGEST_FACES), _LARGEST_FACES)
        return content["fea"], content["gnd"]

    return _faces(folder / "YaleB_32x32.mat", "a MATLAB file with fea and gnd", read)


def _pie(folder: Path) -> tuple[Split, Split]:
    def read(path: Path) -> tuple[Any, Any]:
        with zipfile.ZipFile(path) as archive:
            # What is read of an array ends where the archive's directory says.
            size = sum(member.file_size for member in archive.infolist())
        if size > _LARGEST_FACES:
            raise ValueError(f"it promises {size:,} bytes, where {_LARGEST_FACES:,} are the most")
        with np.load(path) as content:
            return content["X"], content["y"]

    return _faces(folder / "pie_32x32.npz", "a NumPy archive with X and y", read)


_CIFAR = "From https://www.cs.toronto.edu/~kriz/cifar.html, the binary or the python version, unpacked."
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
SETS: dict[str, DatasetReader] = {
    "mnist": DatasetReader(
        {"MNIST/raw": _mnist}, 10, "torchvision.datasets.MNIST(root, download=True) lays it out; plain or gzipped."
    ),
    "fashion-mnist": DatasetReader(
        {"FashionMNIST/raw": _mnist, "fashion-mnist": _mnist},
        10,
        "torchvision.datasets.FashionMNIST(root, download=True) lays it out; Debian's package "
        "dataset-fashion-mnist has it under /usr/share/datasets.",
    ),
    "cifar10": DatasetReader(
        {
            "cifar-10-batches-bin": _cifar_binary([f"{name}.bin" for name in _BATCHES], "test_batch.bin", 10000, 1),
            "cifar-10-batches-py": _cifar_python(_BATCHES, "test_batch", b"labels"),
        },
        10,
        _CIFAR,
    ),
    "cifar100": DatasetReader(
        {
            "cifar-100-binary": _cifar_binary(["train.bin"], "test.bin", 50000, 2),
            "cifar-100-python": _cifar_python(["train"], "test", b"fine_labels"),
        },
        100,
        _CIFAR,
    ),
    "yaleb": DatasetReader(
        {"yaleb": _yaleb},
        38,
        "YaleB_32x32.mat (2,414 images) of Deng Cai's face sets, http://www.cad.zju.edu.cn/home/dengcai.",
    ),
    "pie": DatasetReader(
        {"pie": _pie},
        68,
        "The 11,554 images of 68 people of Deng Cai's face sets, http://www.cad.zju.edu.cn/home/dengcai, as "
        "pie_32x32.npz with X (11554, 32, 32) of bytes and y.",
    ),
}
"""The sets that :func:`load` reads, by name: where each lies under the data root, and where it comes from."""
