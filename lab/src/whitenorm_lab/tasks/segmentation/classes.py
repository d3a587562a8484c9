"""Names and colours of the classes of known sets."""

from __future__ import annotations

from typing import NamedTuple

IGNORE = 255
"""The label of a pixel without a class."""


class Category(NamedTuple):
    """A class of pixels, and the red, green and blue it is shown in."""

    name: str
    colour: tuple[int, int, int]


def colour(number: int) -> tuple[int, int, int]:
    """A colour for a class, by its number: the bits of number + 1, highest first, in red, green and blue by turns.

    Example::

        >>> colour(0), colour(1), colour(2)
        ((128, 0, 0), (0, 128, 0), (128, 128, 0))
    """
    number += 1
    parts = [sum((number >> (3 * place + part) & 1) << (7 - place) for place in range(8)) for part in range(3)]
    return parts[0], parts[1], parts[2]


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

# With the number of each in the set's label maps.
_CITYSCAPES = {
    7: Category("road", (128, 64, 128)),
    8: Category("sidewalk", (244, 35, 232)),
    11: Category("building", (70, 70, 70)),
    12: Category("wall", (102, 102, 156)),
    13: Category("fence", (190, 153, 153)),
    17: Category("pole", (153, 153, 153)),
    19: Category("traffic light", (250, 170, 30)),
    20: Category("traffic sign", (220, 220, 0)),
    21: Category("vegetation", (107, 142, 35)),
    22: Category("terrain", (152, 251, 152)),
    23: Category("sky", (70, 130, 180)),
    24: Category("person", (220, 20, 60)),
    25: Category("rider", (255, 0, 0)),
    26: Category("car", (0, 0, 142)),
    27: Category("truck", (0, 0, 70)),
    28: Category("bus", (0, 60, 100)),
    31: Category("train", (0, 80, 100)),
    32: Category("motorcycle", (0, 0, 230)),
    33: Category("bicycle", (119, 11, 32)),
}
CITYSCAPES = tuple(_CITYSCAPES.values())
CITYSCAPES_IDS = tuple(_CITYSCAPES)
CITYSCAPES_LAST = 33
"""The largest number that a label map of Cityscapes may have; those that are no class are void."""
