"""Answers to words that are not known."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import NoReturn


def refuse(prog: str, words: str) -> NoReturn:
    """Say what is wrong with the arguments, and end."""
    print(f"{prog}: {words}\n{prog} --help lists all.", file=sys.stderr)
    raise SystemExit(2)


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` with those of the known words that are like this one.

    Example::

        >>> near("--lyer", ["--layer", "--where"]), near("gx", ["iternorm"])
        ('; did you mean --layer?', '')
    """
    found = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(found)}?" if found else ""
