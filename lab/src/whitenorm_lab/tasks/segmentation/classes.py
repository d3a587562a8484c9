"""Names and colors of the classes of known data sets."""

from __future__ import annotations

from typing import NamedTuple

IGNORE = 255
"""The label of a pixel without a class."""


class Category(NamedTuple):
    """A class of pixels, and the RGB color it is drawn in."""

    name: str
    color: tuple[int, int, int]


def build_color(label: int) -> tuple[int, int, int]:
    """Return PASCAL VOC's color of a class: the bits of ``label + 1`` alternate between red, green and blue.

    Example::

        >>> build_color(0), build_color(1), build_color(2)
        ((128, 0, 0), (0, 128, 0), (128, 128, 0))
    """
    bits = label + 1
    channels = [sum((bits >> (3 * i + channel) & 1) << (7 - i) for i in range(8)) for channel in range(3)]
    return channels[0], channels[1], channels[2]


CAMVID = (
    Category("sky", (128, 128, 128)),
    Category("building", (128, 0, 0)),
    Category("pole", (192, 192, 128)),
    Category("road", (128, 64, 128)),
    Category("pavement", (60, 40, 222)),
    Category("tree", (128, 128, 0)),
    Category("sign", (192, 128, 128)),
    Category("fence", (64, 64, 128)),
    Category("car", (64, 0, 128)),
    Category("pedestrian", (64, 64, 0)),
    Category("bicyclist", (0, 128, 192)),
)
