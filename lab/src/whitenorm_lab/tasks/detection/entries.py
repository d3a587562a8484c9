"""Fields that the entries of COCO's lists must have, and checks of the outlines that masks are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

# Integers below this fit into 64 bits.
_LIMIT = 2.0**63
# Bits of a character of compressed run lengths: the digit, whether more digits follow, and the sign of the last digit.
_DIGITS, _MORE, _SIGN = 31, 32, 16


class Field(NamedTuple):
    """Description of a valid value and its test. Fields that are not required may be missing."""

    expected: str
    is_valid: Callable[[Any], bool]
    required: bool = True


def check_entry(entry: Any, index: int, part: str, file: Path) -> None:
    """Raise a ValueError that names file, entry and field if an entry does not match :data:`FIELDS`.

    Args:
        entry: the list item.
        index: its index, which identifies an entry without an id.
        part: "image", "category" or "annotation".
        file: the annotation file.
    """
    fields = FIELDS[part]
    required = [name for name, field in fields.items() if field.required]
    if not isinstance(entry, dict) or any(name not in entry for name in required):
        raise ValueError(
            f"expected {', '.join(required)} of every {part} in {file} (got {shorten(entry)} at index {index})"
        )
    label = f"{part} {entry['id']}" if _is_integer(entry["id"]) else f"the {part} at index {index}"
    for name, field in fields.items():
        if name in entry and not field.is_valid(entry[name]):
            raise ValueError(
                f"expected {field.expected} as the {name} of {label} of {file} (got {shorten(entry[name])}); correct "
                "the entry, or remove it"
            )


def describe_misfit(outline: Any, width: int, height: int, margin: float) -> str:
    """Describe why a segmentation does not fit an image of this size; empty if it does.

    Args:
        outline: polygons, run lengths or nothing, with the types that :func:`check_entry` requires.
        width, height: size of the image in pixels.
        margin: number of pixels by which a polygon may exceed the image.

    Example::

        >>> describe_misfit([[0, 0, 4, 0, 4, 9]], width=4, height=4, margin=0)
        'polygons from 0 to 4 and from 0 to 9, outside of 4×4 pixels'
        >>> describe_misfit({"size": [4, 4], "counts": [10, 5]}, width=4, height=4, margin=0)
        'run lengths of 15 pixels for an image of 4×4'
    """
    if not outline:
        return ""
    if isinstance(outline, list):
        xs, ys = ([value for polygon in outline for value in polygon[axis::2]] for axis in (0, 1))
        if min(*xs, *ys) >= -margin and max(xs) <= width + margin and max(ys) <= height + margin:
            return ""
        return (
            f"polygons from {min(xs)} to {max(xs)} and from {min(ys)} to {max(ys)}, outside of {width}×{height} pixels"
        )
    if outline["size"] != [height, width]:
        return f"run lengths of size {outline['size']} for an image of [{height}, {width}]"
    try:
        runs = _decode_runs(outline["counts"]) if isinstance(outline["counts"], str) else outline["counts"]
    except ValueError as error:
        return f"run lengths that {error}"
    if min(runs, default=0) < 0 or sum(runs) != width * height:
        return f"run lengths of {sum(runs)} pixels for an image of {width}×{height}"
    return ""


def shorten(value: Any) -> str:
    """Return the beginning of a value's ``repr``, for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _decode_runs(text: str) -> list[int]:
    """Decode compressed run lengths: numbers with five bits per character, lowest first.

    From the fourth on, each number is the difference from the run length two places before.

    Example::

        >>> _decode_runs("23?2")
        [2, 3, 15, 5]
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - ord("0")
        if not 0 <= bits < 2 * _MORE:
            raise ValueError(f"contain the invalid character {character!r}")
        value |= (bits & _DIGITS) << shift
        shift += 5
        if not bits & _MORE:
            value -= (1 << shift) * bool(bits & _SIGN)
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("end in the middle of a number")
    return runs


def _are_numbers(values: Any, types: frozenset[type] = frozenset({int, float})) -> bool:
    """Test for a list of finite numbers, without a Python call per number, as a data set has a hundred million."""
    return (
        isinstance(values, list) and types.issuperset(map(type, values)) and all(map(_LIMIT.__gt__, map(abs, values)))
    )


def _are_integers(values: Any) -> bool:
    return _are_numbers(values, frozenset({int}))


def _is_integer(value: Any) -> bool:
    return _are_integers([value])


def _is_box(value: Any) -> bool:
    return _are_numbers(value) and len(value) == 4 and min(value[2:]) >= 0


def _is_polygon(value: Any) -> bool:
    return _are_numbers(value) and len(value) >= 6 and len(value) % 2 == 0


def _is_outline(value: Any) -> bool:
    """Test for the types of polygons or run lengths. Data sets without masks have null or an empty list."""
    if not isinstance(value, dict):
        return value is None or (isinstance(value, list) and all(map(_is_polygon, value)))
    counts = value.get("counts")
    return _are_integers(value.get("size")) and (isinstance(counts, str) or _are_integers(counts))


def _is_path_inside(value: Any) -> bool:
    """Test for a relative path that does not leave its folder."""
    path = PurePath(value) if isinstance(value, str) else PurePath()
    return bool(path.parts) and not path.anchor and ".." not in path.parts and "\0" not in path.name


_ID = Field("an integer", _is_integer)
_SIDE = Field("a positive integer", lambda value: _is_integer(value) and value > 0)
FIELDS: dict[str, dict[str, Field]] = {
    "image": {
        "id": _ID,
        "file_name": Field("a path inside the folder of images", _is_path_inside),
        "width": _SIDE,
        "height": _SIDE,
    },
    "category": {"id": _ID, "name": Field("a string", lambda value: isinstance(value, str))},
    "annotation": {
        "id": _ID,
        "image_id": _ID,
        "category_id": _ID,
        "bbox": Field("x, y, width and height", _is_box),
        "area": Field("a non-negative number", lambda value: _are_numbers([value]) and value >= 0, required=False),
        "iscrowd": Field("0 or 1", lambda value: value in (0, 1), required=False),
        "segmentation": Field("polygons of x and y, or run lengths", _is_outline, required=False),
    },
}
"""The fields that are read from the entries of each list."""
