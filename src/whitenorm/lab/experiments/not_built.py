"""What the papers report and no entry here runs, with the reason: counted, as what is not looked at says nothing."""

from __future__ import annotations

from typing import NamedTuple


class NotBuilt(NamedTuple):
    """A figure or table of a paper without an entry."""

    paper: str
    where: str
    title: str
    why: str


NOT_BUILT: tuple[NotBuilt, ...] = ()
