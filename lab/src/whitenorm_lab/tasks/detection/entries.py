"""Tables of the fields that entries of COCO's lists must have, and checks of the outlines that masks are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

# Whole numbers below fit into 64 bits.
_LIMIT = 2.0**63
# Bits of a character of compressed run lengths: digits, whether more follow, and the sign of the last.
_DIGITS, _MORE, _SIGN = 31, 32, 16


class Field(NamedTuple):
    """An expectation of a field, in words and as a test; a field that is not required may be missing."""

    expected: str
    fits: Callable[[Any], bool]
    required: bool = True


def check(entry: Any, place: int, kind: str, file: Path) -> None:
    """Raise a ValueError that names file, entry and field unless an entry of a list is as :data:`FIELDS` says.

    Args:
        entry: what the list has.
        place: its index, by which an entry without an id is named.
        kind: "image", "category" or "annotation".
        file: the file of annotations.
    """
    fields = FIELDS[kind]
    required = [name for name, field in fields.items() if field.required]
    if not isinstance(entry, dict) or any(name not in entry for name in required):
        raise ValueError(
            f"expected {', '.join(required)} of every {kind} in {file} (got {short(entry)} at index {place})"
        )
    called = f"{kind} {entry['id']}" if _is_whole(entry["id"]) else f"the {kind} at index {place}"
    for name, field in fields.items():
        if name in entry and not field.fits(entry[name]):
            raise ValueError(
                f"expected {field.expected} as the {name} of {called} of {file} (got {short(entry[name])}); mend the "
                "entry, or remove it"
            )


def describe_misfit(outline: Any, width: int, height: int, margin: float) -> str:
    """Say why a segmentation does not fit an image of this size; an empty string if it does.

    Args:
        outline: polygons, run lengths or nothing, of the form that :func:`check` asks for.
        width, height: of the image, in pixels.
        margin: how many pixels a polygon may lie outside.

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
        runs = _decode(outline["counts"]) if isinstance(outline["counts"], str) else outline["counts"]
    except ValueError as error:
        return f"run lengths that {error}"
    if min(runs, default=0) < 0 or sum(runs) != width * height:
        return f"run lengths of {sum(runs)} pixels for an image of {width}×{height}"
    return ""


def short(value: Any) -> str:
    """A value's beginning, to show in an error."""
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}…"


def _decode(text: str) -> list[int]:
    """Return the run lengths that COCO writes as text: numbers of five bits a character, lowest first.

    From the fourth on, each is the difference to the one two places before.

    Example::

        >>> _decode("23?2")
        [2, 3, 15, 5]
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - ord("0")
        if not 0 <= bits < 2 * _MORE:
            raise ValueError(f"have no character {character!r}")
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
    """Whether it is a list of finite numbers; without a Python call for each, as a set has a hundred million."""
    return (
        isinstance(values, list) and types.issuperset(map(type, values)) and all(map(_LIMIT.__gt__, map(abs, values)))
    )


def _are_whole(values: Any) -> bool:
    return _are_numbers(values, frozenset({int}))


def _is_whole(value: Any) -> bool:
    return _are_whole([value])


def _is_box(value: Any) -> bool:
    return _are_numbers(value) and len(value) == 4 and min(value[2:]) >= 0


def _is_polygon(value: Any) -> bool:
    return _are_numbers(value) and len(value) >= 6 and len(value) % 2 == 0


def _is_outline(value: Any) -> bool:
    """Whether it has the form of polygons or run lengths; sets of boxes alone have null or an empty list."""
    if not isinstance(value, dict):
        return value is None or (isinstance(value, list) and all(map(_is_polygon, value)))
    counts = value.get("counts")
    return _are_whole(value.get("size")) and (isinstance(counts, str) or _are_whole(counts))


def _is_inside(value: Any) -> bool:
    """Whether it is a path that does not leave the folder it begins in."""
    path = PurePath(value) if isinstance(value, str) else PurePath()
    return bool(path.parts) and not path.anchor and ".." not in path.parts and "\0" not in path.name


_ID = Field("a whole number", _is_whole)
_SIDE = Field("a whole number from 1", lambda value: _is_whole(value) and value > 0)
FIELDS: dict[str, dict[str, Field]] = {
    "image": {
        "id": _ID,
        "file_name": Field("a path inside the folder of images", _is_inside),
        "width": _SIDE,
        "height": _SIDE,
    },
    "category": {"id": _ID, "name": Field("a text", lambda value: isinstance(value, str))},
    "annotation": {
        "id": _ID,
        "image_id": _ID,
        "category_id": _ID,
        "bbox": Field("x, y, width and height", _is_box),
        "area": Field("a number from 0", lambda value: _are_numbers([value]) and value >= 0, required=False),
        "iscrowd": Field("0 or 1", lambda value: value in (0, 1), required=False),
        "segmentation": Field("polygons of x and y, or run lengths", _is_outline, required=False),
    },
}
"""The fields that are read, per list."""
