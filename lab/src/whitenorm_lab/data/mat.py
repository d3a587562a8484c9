"""Reader of numeric arrays in MATLAB files of version 5 (MATLAB 5 to 7).

``scipy.io.loadmat`` can crash the interpreter and allocate gigabytes on damaged files. Here every length is checked
before use, and a damaged file is a ValueError. The format is MathWorks' "MAT-File Format": a header of 128 bytes, then
elements with a tag of type and size, each of which holds one array.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np

# NumPy types by MATLAB's type codes, and the codes of an array and of a compressed element.
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
# Array classes: doubles, singles and integers.
_NUMERIC = range(6, 16)
_COMPLEX = 0x08


def read_arrays(content: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    """Return the real numeric arrays of a file by name; other variables are skipped.

    Args:
        content: the file's bytes.
        max_bytes: limit on the total decompressed size of its compressed elements.
    """
    if len(content) < 128 or content[124:128] != b"\x00\x01IM":
        raise ValueError("it is not a MATLAB file of version 5 in little-endian order")
    arrays = {}
    for code, data in _iterate_elements(content[128:]):
        if code == _COMPRESSED:
            element = _decompress(data, max_bytes)
            max_bytes -= len(element)
            code, data = next(_iterate_elements(element), (0, b""))
        if code == _ARRAY:
            name, value = _parse_array(data)
            if value is not None:
                arrays[name] = value
    return arrays


def _decompress(data: bytes, max_bytes: int) -> bytes:
    """Return the element inside a compressed one; no more is decompressed than the size in its tag."""
    decompressor = zlib.decompressobj()
    try:
        tag = decompressor.decompress(data, 8)
        size = int.from_bytes(tag[4:], "little")
        if len(tag) + size > max_bytes:
            raise ValueError(f"a compressed element has {size:,} bytes, more than the {max_bytes:,} still allowed")
        # With one more byte, zlib reaches the end of the stream and verifies its checksum.
        return tag + decompressor.decompress(decompressor.unconsumed_tail, size + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed element is damaged ({error})") from error


def _iterate_elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type code and data of each element; a small element has its tag and data within eight bytes."""
    start = 0
    while start + 8 <= len(content):
        code, size = (int.from_bytes(content[i : i + 4], "little") for i in (start, start + 4))
        small_size = code >> 16
        data_start = start + 4 if small_size else start + 8
        code, size = (code & 0xFFFF, small_size) if small_size else (code, size)
        if data_start + size > len(content) or small_size > 4:
            raise ValueError(f"an element of {size} bytes exceeds the end of the file")
        yield code, content[data_start : data_start + size]
        end = start + 8 if small_size else data_start + size
        # All but compressed elements are padded to a multiple of eight bytes.
        start = end if code == _COMPRESSED else end + -end % 8


def _parse_array(data: bytes) -> tuple[str, np.ndarray | None]:
    """Return name and values of an array, whose elements are flags, dimensions, name and numbers in this order."""
    elements = list(_iterate_elements(data))[:4]
    if len(elements) < 4 or len(elements[0][1]) < 4:
        return "", None
    (_, flags), (_, dims), (_, name), (code, numbers) = elements
    if flags[0] not in _NUMERIC or flags[1] & _COMPLEX or code not in _DTYPES or len(dims) % 4:
        return "", None
    shape = [int(dim) for dim in np.frombuffer(dims, "<i4")]
    dtype = np.dtype(f"<{_DTYPES[code]}")
    if min(shape, default=-1) < 0 or len(numbers) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(numbers)} bytes")
    values = np.frombuffer(numbers, dtype).reshape(shape, order="F")
    return name.decode("latin-1"), values
