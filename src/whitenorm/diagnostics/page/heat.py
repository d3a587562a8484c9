"""A correlation matrix as a small PNG inside the page."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

# From −1 by 0 to 1: blue and orange, which colour-blind readers tell apart too.
_STOPS = ((5, 64, 128), (84, 158, 214), (255, 255, 255), (245, 140, 60), (140, 48, 4))
_LEVELS = 65
_GREY = (128, 128, 128)


def gradient() -> str:
    """The colours as a CSS gradient, for a legend."""
    return f"linear-gradient(to right, {', '.join(f'rgb{stop}' for stop in _STOPS)})"


def heat_map(matrix: Tensor) -> str:
    """A data URI of values in [−1, 1], a pixel each; what is not finite is grey.

    Example::

        >>> heat_map(torch.eye(3))[:22]
        'data:image/png;base64,'
    """
    levels = ((matrix.clamp(-1, 1) + 1) / 2 * (_LEVELS - 1)).round()
    levels = levels.nan_to_num(_LEVELS).to("cpu", torch.uint8)
    palette = bytes(channel for level in range(_LEVELS) for channel in _colour(level)) + bytes(_GREY)
    # Every row begins with its filter, of which 0 is none.
    rows = b"".join(b"\0" + bytes(row) for row in levels.tolist())
    height, width = matrix.shape
    png = b"\x89PNG\r\n\x1a\n"
    png += _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    png += _chunk(b"PLTE", palette) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _colour(level: int) -> tuple[int, ...]:
    place = level / (_LEVELS - 1) * (len(_STOPS) - 1)
    left = min(int(place), len(_STOPS) - 2)
    share = place - left
    return tuple(round((1 - share) * a + share * b) for a, b in zip(_STOPS[left], _STOPS[left + 1], strict=True))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
