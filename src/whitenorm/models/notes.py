"""Format what a warning says about many layers in a few lines."""

from __future__ import annotations

from collections.abc import Iterable

# Names per line; a large model has hundreds of layers.
_MAX_NAMES = 8


def format_notes(notes: Iterable[tuple[str, str]], hint: str = "") -> str:
    """Return one indented line per note, with the names that it applies to; empty notes are left out.

    Args:
        notes: pairs of a layer's name and a note.
        hint: added where a line has too many names to list them all.

    Example::

        >>> print(format_notes([("bn1", "too narrow"), ("bn2", ""), ("bn3", "too narrow")]))
        <BLANKLINE>
          bn1, bn3: too narrow
    """
    names: dict[str, list[str]] = {}
    for name, note in notes:
        if note:
            names.setdefault(note, []).append(name or "the model")
    lines = []
    for note, group in names.items():
        more = f" and {len(group) - _MAX_NAMES} more{hint}" if len(group) > _MAX_NAMES else ""
        lines.append(f"\n  {', '.join(group[:_MAX_NAMES])}{more}: {note}")
    return "".join(lines)
