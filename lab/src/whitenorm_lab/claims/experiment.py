"""What an experiment is: runs to make, a figure of them, and claims to judge by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab import data
from whitenorm_lab.claims.evidence import Evidence
from whitenorm_lab.claims.results import Results, kept
from whitenorm_lab.claims.rules import RULES, SECOND, Rule

Settings = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it prints for it, and how runs decide on it."""

    text: str
    paper: str
    """The paper's own numbers or picture, in words."""
    judge: Callable[[Results], Evidence]
    exact: bool = False
    """Does not depend on the scale: counts, shapes, placements. Others are never decided at smoke scale."""
    otherwise: str = ""
    """What is known of the reason, for where it does not hold."""
    ours: bool = False
    """A bar of this library's own, such as a time on this machine beside one printed for a GPU: counted apart."""


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
    plain JSON values and hold all that decides a run's numbers. ``run`` makes one, with torch's random numbers set to
    its seed, and returns its raw values.
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
    fewest_seeds: int = field(default=SECOND.fewest, kw_only=True)
    """Below which nothing is decided: three where runs are long."""
    first_seed: int = field(default=0, kw_only=True)
    """Seeds count from here: not those of pilots, by which a set-up was chosen."""
    plan: Callable[[Settings], list[Settings]]
    run: Callable[[Settings, Context], dict[str, Any]]
    draw: Callable[[Results], Figure]
    run_seeds: Callable[[Settings, Sequence[Context]], list[dict[str, Any]]] | None = None
    """In place of ``run``, all seeds of the same settings at once, where that is faster."""
    data: tuple[str, ...] = ()
    reduction: str = ""
    """What the default scale is short of, as a sentence that stands with every claim."""
    shares: tuple[str, ...] = ()
    """Other experiments with some of the same runs, which are taken over from their results where they are there."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """What ran at the default scale in the place of what a claim names, such as another net."""

    def __post_init__(self) -> None:
        if set(self.scales) != set(SCALES) or set(self.seeds) != set(SCALES):
            raise ValueError(
                f"expected scales and seeds of {self.id} for {', '.join(SCALES)} (got {list(self.scales)})"
            )

    def wording(self, claim: Claim, scale: str) -> str:
        """A claim's text, with the net that ran where it is not the paper's."""
        return standing_in(claim.text, self.stand_ins if scale == "default" else {})

    def made(self, content: dict[str, Any]) -> bool:
        """Whether results are of this set-up: the same parameters, and seeds from the same one on."""
        first = min((run.seed for run in content["runs"]), default=self.first_seed)
        return bool(content["parameters"] == kept(self.scales[content["scale"]])) and first == self.first_seed

    def rule(self, name: str) -> Rule:
        """The rule of this name, with this entry's number of seeds."""
        rule = RULES[name]
        return replace(rule, fewest=min(rule.fewest, self.fewest_seeds))


def standing_in(text: str, ran: Mapping[str, str]) -> str:
    """
    >>> standing_in("DBN beats BN, WRN-28-10", {"WRN-28-10": "WRN-16-2"})
    'DBN beats BN, WRN-16-2 (for WRN-28-10)'
    """
    names = "|".join(re.escape(name) for name in sorted(ran, key=len, reverse=True))
    return re.sub(names, lambda name: f"{ran[name[0]]} (for {name[0]})", text) if ran else text


SCALES = ("smoke", "default", "paper")
