"""Near matches for names that are not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known names closest to a word, or nothing if none is close.

    Example::

        >>> suggest("--lyer", ["--layer", "--where"]), suggest("gx", ["iternorm"])
        ('; did you mean --layer?', '')
    """
    matches = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
