"""Answers to words that are not known."""

from __future__ import annotations

import sys
from typing import NoReturn


def refuse(prog: str, words: str) -> NoReturn:
    """Say what is wrong with the arguments, and end."""
    print(f"{prog}: {words}\n{prog} --help lists all.", file=sys.stderr)
    raise SystemExit(2)
