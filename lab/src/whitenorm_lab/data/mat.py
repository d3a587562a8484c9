"""Numeric arrays of MATLAB files (version 5, as MATLAB 5 to 7 write them), in Python alone.

Every length is checked before it is used, so that a damaged file is a ValueError. The layout is MathWorks' "MAT-File
Format": a header of 128 bytes, then elements with a tag of type and size, an array in each.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np

# Numbers of MATLAB's types, and which of them hold an array and a compressed element.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
# Of classes of arrays: doubles, singles and integers.
_NUMERIC = range(6, 16)
_COMPLEX = 0x08


def arrays(content: bytes, most: int) -> dict[str, np.ndarray]:
    """The real numeric arrays of a file by name; other variables are passed over.

    Args:
        content: the file's bytes.
        most: how many bytes its compressed parts may have in all when unpacked.
    """
    if len(content) < 128 or content[124:128] != b"\x00\x01IM":
        raise ValueError("it is not a MATLAB file of version 5 in little-endian order")
    found = {}
    for kind, data in _elements(content[128:]):
        if kind == _COMPRESSED:
            inner = _unpack(data, most)
            most -= len(inner)
            kind, data = next(_elements(inner), (0, b""))
        if kind == _ARRAY:
            name, value = _array(data)
            if value is not None:
                found[name] = value
    return found


def _unpack(data: bytes, most: int) -> bytes:
    """Return the one element that a compressed one holds; no more is unpacked than its tag promises."""
    unzip = zlib.decompressobj()
    try:
        tag = unzip.decompress(data, 8)
        size = int.from_bytes(tag[4:], "little")
        if len(tag) + size > most:
            raise ValueError(f"a compressed part promises {size:,} bytes, where at most {most:,} are left for it")
        # One byte more, as zlib compares the checksum at the end.
        return tag + unzip.decompress(unzip.unconsumed_tail, size + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed part is damaged ({error})") from error


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and data of one element after the other; short ones have both in eight bytes."""
    place = 0
    while place + 8 <= len(content):
        kind, size = (int.from_bytes(content[i : i + 4], "little") for i in (place, place + 4))
        short = kind >> 16
        start = place + 4 if short else place + 8
        kind, size = (kind & 0xFFFF, short) if short else (kind, size)
        if start + size > len(content) or short > 4:
            raise ValueError(f"a part of {size} bytes is longer than what is left")
        yield kind, content[start : start + size]
        end = place + 8 if short else start + size
        # Compressed elements alone are not filled up to eight bytes.
        place = end if kind == _COMPRESSED else end + -end % 8


def _array(data: bytes) -> tuple[str, np.ndarray | None]:
    """Name and values of an array: flags, dimensions, name and numbers, in this order."""
    parts = list(_elements(data))[:4]
    if len(parts) < 4 or len(parts[0][1]) < 4:
        return "", None
    (_, flags), (_, dims), (_, name), (kind, numbers) = parts
    if flags[0] not in _NUMERIC or flags[1] & _COMPLEX or kind not in _TYPES or len(dims) % 4:
        return "", None
    shape = [int(dim) for dim in np.frombuffer(dims, "<i4")]
    values_type = np.dtype(f"<{_TYPES[kind]}")
    if min(shape, default=-1) < 0 or len(numbers) != math.prod(shape) * values_type.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(numbers)} bytes")
    values = np.frombuffer(numbers, values_type).reshape(shape, order="F")
    return name.decode("latin-1"), values
