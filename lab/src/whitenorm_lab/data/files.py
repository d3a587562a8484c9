"""Readers of data set files, plain or gzipped, with size limits and errors that name the file."""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

# The IDX code of unsigned bytes.
_IDX_UINT8 = 8
# CIFAR-100's training set, the largest pickle, has 154 MB of pixels.
_MAX_PICKLE_BYTES = 2**28


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file, or ``path.gz`` if only that exists; raise if it has more than ``max_bytes``.

    At most ``max_bytes + 1`` bytes are decompressed: a small gzip file can expand to gigabytes.
    """
    path = _resolve_gzip(path)
    with _open(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise invalid_file_error(path, f"a file of at most {max_bytes:,} bytes (got more)")
    return content


def _resolve_gzip(path: Path) -> Path:
    """Return the path, or that of its gzipped form if only that exists."""
    zipped = path.with_name(path.name + ".gz")
    return zipped if zipped.exists() and not path.exists() else path


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and decompress it if its name ends with ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise invalid_file_error(path, f"a complete gzip file ({error})") from error


def invalid_file_error(path: Path, expected: str) -> OSError:
    """Build the error for a file that exists but has unexpected content."""
    return OSError(f"expected {path} to be {expected}; it is truncated or another file: download it again")


def read_idx(path: Path, item_shape: tuple[int, ...], max_items: int) -> Tensor:
    """Read an IDX file of at most ``max_items`` byte arrays of the shape ``item_shape``."""
    path = _resolve_gzip(path)
    expected = f"an IDX file of at most {max_items:,} items in the shape {item_shape}"
    magic, sizes = bytes([0, 0, _IDX_UINT8, 1 + len(item_shape)]), struct.pack(f">{len(item_shape)}I", *item_shape)
    with _open(path) as file:
        header = file.read(8 + len(sizes))
        count = int.from_bytes(header[4:8], "big")
        if (header[:4], header[8:]) != (magic, sizes) or count > max_items:
            raise invalid_file_error(path, f"{expected} (got the header {header!r})")
        size = count * math.prod(item_shape)
        # One more byte, to detect a file that is too long.
        content = file.read(size + 1)
    if len(content) != size:
        amount = "more" if len(content) > size else "fewer"
        raise invalid_file_error(path, f"{expected} (got {amount} than the {count:,} in its header)")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, *item_shape)


def read_records(path: Path, width: int, count: int) -> Tensor:
    """Read ``count`` records of ``width`` bytes."""
    content = read_bytes(path, count * width)
    if len(content) != count * width:
        raise invalid_file_error(path, f"{count} records of {width} bytes (got {len(content)} bytes)")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, width)


def read_pickle(path: Path, md5: str) -> Any:
    """Unpickle a file with the given MD5 checksum; any other content is never unpickled, as it could run code."""
    content = read_bytes(path, _MAX_PICKLE_BYTES)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise invalid_file_error(path, f"the official file with the MD5 checksum {md5}")
    return pickle.loads(content, encoding="bytes")
