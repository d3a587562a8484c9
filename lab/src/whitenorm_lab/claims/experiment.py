"""Experiments: runs to make, a figure of them, and claims to judge by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab import data
from whitenorm_lab.claims.evidence import Evidence
from whitenorm_lab.claims.results import Results, to_json_values
from whitenorm_lab.claims.rules import MIN_SEEDS

SCALES = ("smoke", "default", "paper")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, the numbers printed for it, and a function that collects our evidence."""

    text: str
    paper: str
    """The paper's own numbers or figure, in words."""
    judge: Callable[[Results], Evidence]
    exact: bool = False
    """Whether the claim is independent of the scale (counts, shapes, placements); others are not decided at smoke
    scale."""
    reason: str = ""
    """Known reason why the claim does not hold here, shown if it does not."""
    bar: bool = False
    """Whether this is a bar of our own, such as a time on this machine against one printed for a GPU. Bars are counted
    separately from the papers' claims."""


@dataclass
class Context:
    """Arguments of a run besides its settings."""

    seed: int
    data_root: Path | None = None
    progress: Callable[[float], None] = field(default=lambda share: None)
    """Callback for the completed share, from 0 to 1."""
    folder: Path | None = None
    """Folder for files from which an interrupted run resumes; removed after the run."""

    def load(self, name: str) -> data.Dataset:
        """Load a data set. The last one is cached, because consecutive runs use the same one."""
        key = (name, data.root_folder(self.data_root))
        if key not in _CACHE:
            _CACHE.clear()
            _CACHE[key] = data.load(name, self.data_root)
        return _CACHE[key]


_CACHE: dict[tuple[str, Path | None], data.Dataset] = {}


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper: its runs, a figure of their results, and its claims.

    ``scales`` has the parameters of each scale: smoke (seconds), default (minutes on two cores) and paper (the paper's
    own). ``plan`` turns them into the settings of all runs, each of which is repeated with every seed. Settings are
    plain JSON values and determine the results of a run. ``run`` makes one run, after torch was seeded with the run's
    seed, and returns its raw values.
    """

    id: str
    paper: str
    where: str
    title: str
    cost: str
    """Time of the default scale on two cores."""
    claims: tuple[Claim, ...]
    scales: dict[str, Settings]
    seeds: dict[str, int]
    """Number of seeds per scale."""
    min_seeds: int = field(default=MIN_SEEDS, kw_only=True)
    """Smallest number of seeds for a verdict: three if runs are long."""
    first_seed: int = field(default=0, kw_only=True)
    """The first seed, after those of the pilot runs by which a set-up was chosen."""
    plan: Callable[[Settings], list[Settings]]
    run: Callable[[Settings, Context], dict[str, Any]]
    draw: Callable[[Results], Figure]
    run_seeds: Callable[[Settings, Sequence[Context]], list[dict[str, Any]]] | None = None
    """Used instead of ``run`` if set: runs all seeds of the same settings at once, where that is faster."""
    data: tuple[str, ...] = ()
    reduction: str = ""
    """How the default scale is smaller than the paper's, as a sentence shown with every claim."""
    shares: tuple[str, ...] = ()
    """Other experiments that have some of the same runs, which are copied from their results if available."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """What the default scale uses in place of something that a claim names, such as another net."""

    def __post_init__(self) -> None:
        if set(self.scales) != set(SCALES) or set(self.seeds) != set(SCALES):
            raise ValueError(
                f"expected scales and seeds of {self.id} for {', '.join(SCALES)} (got {list(self.scales)})"
            )

    def word_claim(self, claim: Claim, scale: str) -> str:
        """Return a claim's text, which names the stand-ins at the default scale."""
        return name_stand_ins(claim.text, self.stand_ins if scale == "default" else {})

    def matches_setup(self, content: dict[str, Any]) -> bool:
        """Return whether stored results have this experiment's parameters and first seed."""
        first = min((run.seed for run in content["runs"]), default=self.first_seed)
        parameters = to_json_values(self.scales[content["scale"]])
        return bool(content["parameters"] == parameters) and first == self.first_seed


def name_stand_ins(text: str, stand_ins: Mapping[str, str]) -> str:
    """Replace names in a text by those of their stand-ins, followed by the original names.

    Example::

        >>> name_stand_ins("DBN beats BN, WRN-28-10", {"WRN-28-10": "WRN-16-2"})
        'DBN beats BN, WRN-16-2 (for WRN-28-10)'
    """
    if not stand_ins:
        return text
    names = "|".join(re.escape(name) for name in sorted(stand_ins, key=len, reverse=True))
    return re.sub(names, lambda match: f"{stand_ins[match[0]]} (for {match[0]})", text)
