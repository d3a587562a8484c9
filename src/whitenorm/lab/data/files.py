"""Files of image sets: read whole, checked, with errors that say what is wrong with which file."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def read(path: Path) -> bytes:
    """The content of a file, or of its gzipped form beside it."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and zipped.exists():
        try:
            return gzip.decompress(zipped.read_bytes())
        except (EOFError, OSError, zlib.error) as error:
            raise broken(zipped, f"a whole gzip file ({error})") from error
    return path.read_bytes()


def broken(path: Path, expected: str) -> OSError:
    """The error of a file that is there but not what it should be."""
    return OSError(f"expected {path} to be {expected}; it is cut off or another file: get it again")


def idx(path: Path) -> Tensor:
    """The bytes of an IDX file, in the shape its header gives."""
    content = read(path)
    dims = content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * dims
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if dims == 0 or len(content) != start + np.prod(shape):
        raise broken(path, f"an IDX file of bytes (got {len(content)} bytes)")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def rows(path: Path, width: int, count: int) -> Tensor:
    """``count`` records of ``width`` bytes."""
    content = read(path)
    if len(content) != count * width:
        raise broken(path, f"{count} records of {width} bytes (got {len(content)} bytes)")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, width)


def pickled(path: Path) -> dict[bytes, Any]:
    """A dictionary of lists and NumPy arrays, from a pickle that may hold nothing else."""
    try:
        content = _Unpickler(io.BytesIO(read(path)), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise broken(path, f"a pickled batch ({error})") from error
    if not isinstance(content, dict):
        raise broken(path, f"a pickled dictionary (got {type(content).__name__})")
    return content


class _Unpickler(pickle.Unpickler):
    """Loads what batches of images are made of, and runs nothing else that a file may name."""

    _ALLOWED = ("_reconstruct", "ndarray", "dtype", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if name not in self._ALLOWED or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of images needs")
        return super().find_class(module, name)
