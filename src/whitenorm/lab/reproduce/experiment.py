"""What an experiment is: runs to make, a figure of them, and claims to judge by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from whitenorm.lab import data
from whitenorm.lab.reproduce.results import Results
from whitenorm.lab.reproduce.verdicts import Judgement

Settings = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it prints for it, and how runs decide on it."""

    text: str
    paper: str
    """The paper's own numbers or picture, in words."""
    judge: Callable[[Results], Judgement]
    exact: bool = False
    """Does not depend on the scale: counts, shapes, placements. Others are never decided at smoke scale."""
    otherwise: str = ""
    """What is known of the reason, for where it does not hold."""


@dataclass
class Context:
    """What a run is given besides its settings."""

    seed: int
    data_root: Path | None = None
    progress: Callable[[float], None] = field(default=lambda share: None)
    """To be called with the share that is done, from 0 to 1."""
    folder: Path | None = None
    """For files by which a long run goes on when it is interrupted; gone when the run is done."""

    def load(self, name: str) -> data.Dataset:
        """A data set, read once for all runs."""
        key = (name, data.root_folder(self.data_root))
        if key not in _LOADED:
            _LOADED.clear()
            _LOADED[key] = data.load(name, self.data_root)
        return _LOADED[key]


# The set that was read last: runs come one after the other on the same one.
_LOADED: dict[tuple[str, Path | None], data.Dataset] = {}


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper as runs, a picture and claims.

    ``scales`` has the parameters of each scale: smoke (seconds), default (minutes on two cores) and paper (the paper's
    own). ``plan`` makes from them the settings of all runs, each of which is repeated with every seed; settings are
    plain JSON values and hold all that decides a run's numbers. ``run`` makes one and returns its raw values.
    """

    id: str
    paper: str
    where: str
    title: str
    cost: str
    """Of the default scale on two cores."""
    claims: tuple[Claim, ...]
    scales: dict[str, Settings]
    seeds: dict[str, int]
    """How many, by scale."""
    first_seed: int = field(default=0, kw_only=True)
    """Seeds count from here: not those of pilots, by which a set-up was chosen."""
    plan: Callable[[Settings], list[Settings]]
    run: Callable[[Settings, Context], dict[str, Any]]
    draw: Callable[[Results], Figure]
    data: tuple[str, ...] = ()
    reduction: str = ""
    """What the default scale is short of, as a sentence: a reason for any claim that does not hold there."""

    def __post_init__(self) -> None:
        if set(self.scales) != set(SCALES) or set(self.seeds) != set(SCALES):
            raise ValueError(
                f"expected scales and seeds of {self.id} for {', '.join(SCALES)} (got {list(self.scales)})"
            )

    def reason(self, claim: dict[str, Any], scale: str) -> str:
        """What is known of why a judged claim does not hold; nothing of one that does or is not decided."""
        if claim["verdict"] != "not held":
            return ""
        known = {one.text: one.otherwise for one in self.claims}.get(claim["claim"], "")
        return " ".join(text for text in (known, self.reduction if scale == "default" else "") if text)


SCALES = ("smoke", "default", "paper")
