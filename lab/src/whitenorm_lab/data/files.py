"""Files of image sets: read whole, checked, with errors that say what is wrong with which file."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

# IDX's number of the type.
_IDX_BYTES = 8
# The largest batch is CIFAR-100's training set, 154 MB of pixels.
_LARGEST_PICKLE = 2**28


def read(path: Path, most: int) -> bytes:
    """Return the content of a file, or of its gzipped form beside it; more than ``most`` bytes are an error.

    No more than that is unpacked: a kilobyte of gzip can hold a megabyte.
    """
    path = _stored(path)
    with _open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise broken(path, f"a file of at most {most:,} bytes (got more)")
    return content


def _stored(path: Path) -> Path:
    """Return the path of a file, or of its gzipped form if only that is there."""
    zipped = path.with_name(path.name + ".gz")
    return zipped if zipped.exists() and not path.exists() else path


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking it if its name says that it is gzipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise broken(path, f"a whole gzip file ({error})") from error


def broken(path: Path, expected: str) -> OSError:
    """The error of a file that is there but not what it should be."""
    return OSError(f"expected {path} to be {expected}; it is cut off or another file: get it again")


def idx(path: Path, item: tuple[int, ...], most: int) -> Tensor:
    """Return the bytes of an IDX file of at most ``most`` items in the shape ``item``."""
    path = _stored(path)
    kind = f"an IDX file of at most {most:,} items in the shape {item}"
    start, sizes = bytes([0, 0, _IDX_BYTES, 1 + len(item)]), struct.pack(f">{len(item)}I", *item)
    with _open(path) as file:
        head = file.read(8 + len(sizes))
        count = int.from_bytes(head[4:8], "big")
        if (head[:4], head[8:]) != (start, sizes) or count > most:
            raise broken(path, f"{kind} (got the header {head!r})")
        size = count * math.prod(item)
        # One more, to see where there is more.
        content = file.read(size + 1)
    if len(content) != size:
        raise broken(path, f"{kind} (got {'more' if len(content) > size else 'fewer'} than the {count:,} it promises)")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, *item)


def rows(path: Path, width: int, count: int) -> Tensor:
    """``count`` records of ``width`` bytes."""
    content = read(path, count * width)
    if len(content) != count * width:
        raise broken(path, f"{count} records of {width} bytes (got {len(content)} bytes)")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, width)


def pickled(path: Path) -> dict[bytes, Any]:
    """A dictionary of lists and NumPy arrays of bytes, from a pickle that may hold nothing else."""
    content = read(path, _LARGEST_PICKLE)
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}, not a dictionary")
        return {key: value.rows() if isinstance(value, _Array) else value for key, value in found.items()}
    # A damaged pickle is a program that can fail in any way.
    except Exception as error:
        raise broken(path, f"a pickled batch ({error})") from error


class _Type:
    """In the place of a NumPy type, of which NumPy itself would change its own by a damaged file."""

    def __init__(self, *args: Any) -> None:
        self.name = args[0] if args else None

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which bytes have none of."""


class _Array:
    """In the place of a NumPy array: what was written of it."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        """Of any arguments: they are those of an empty array."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def rows(self) -> Any:
        """The array, if it is one of bytes."""
        _, shape, kind, fortran, content = self.state
        if not isinstance(kind, _Type) or kind.name not in ("u1", b"u1"):
            raise ValueError("an array is not of bytes")
        return np.frombuffer(bytearray(content), np.uint8).reshape(shape, order="F" if fortran else "C")


def _encode(text: str, encoding: Any = None) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    return text.encode("latin-1")


class _Unpickler(pickle._Unpickler):
    """Loads what batches of images are made of, and runs nothing that a file may name.

    It is the one in Python: that in C takes as much memory as a damaged file asks for.
    """

    _KNOWN: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Type,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("_codecs", "encode"): _encode,
    }
    # So would a bytearray, which no batch has.
    dispatch = {  # noqa: RUF012
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of images needs")
        return self._KNOWN[module, name]
