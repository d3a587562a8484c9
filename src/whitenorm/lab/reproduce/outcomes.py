"""All experiments with what their runs gave, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from whitenorm.lab.experiments import EXPERIMENTS, SETUPS
from whitenorm.lab.experiments.not_built import NOT_BUILT, NotBuilt
from whitenorm.lab.reproduce.experiment import Experiment
from whitenorm.lab.reproduce.results import Store
from whitenorm.lab.reproduce.verdicts import Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Paper(NamedTuple):
    """A paper's title and where it is."""

    title: str
    address: str


PAPERS = {
    "DBN": Paper("Decorrelated Batch Normalization", "https://arxiv.org/abs/1804.08450"),
    "IterNorm": Paper("Iterative Normalization", "https://arxiv.org/abs/1904.03441"),
    "SW": Paper("Switchable Whitening", "https://arxiv.org/abs/1904.09739"),
    "GW": Paper("Group Whitening", "https://arxiv.org/abs/2009.13333"),
}


@dataclass(frozen=True)
class Outcome:
    """An experiment, how it is set up in words, and its results if it was run."""

    experiment: Experiment
    setup: str
    store: Store
    content: dict[str, Any] | None

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Each as it was judged, explained."""
        return [] if self.content is None else explained(self.experiment, self.content)


def explained(experiment: Experiment, content: dict[str, Any]) -> list[dict[str, Any]]:
    """The judged claims of an entry (claim, paper, ours, verdict, why), and what is known of them besides.

    That is the reason where one does not hold, what the scale is short of, and whether it is a bar of our own.
    """
    scale = content["scale"]
    known = {experiment.wording(claim, scale): claim for claim in experiment.claims}
    rows = []
    for row in content["claims"]:
        claim = known.get(row["claim"])
        reason = claim.otherwise if claim is not None and row["verdict"] == "not held" else ""
        short = experiment.reduction if scale == "default" and not (claim is not None and claim.exact) else ""
        rows.append({**row, "reason": reason, "short": short, "bar": claim is not None and claim.ours})
    return rows


def gather(folder: Path, scale: str) -> list[Outcome]:
    """Every experiment in the papers' order, with its results at this scale; an error when none was run."""
    outcomes = []
    for experiment in sorted(EXPERIMENTS.values(), key=lambda experiment: [*PAPERS].index(experiment.paper)):
        store = Store(folder, experiment.id, scale)
        outcomes.append(Outcome(experiment, SETUPS[experiment.id], store, store.read()))
    if all(outcome.content is None for outcome in outcomes):
        raise ValueError(
            f"expected results at {scale} scale in {folder} (got none); make some by whitenorm reproduce ID --scale "
            f"{scale} --out {folder}"
        )
    return outcomes


def missing_of(paper: str) -> list[NotBuilt]:
    """What of a paper has no entry."""
    return [missing for missing in NOT_BUILT if missing.paper == paper]


def tally(outcomes: Iterable[Outcome], bars: bool = False) -> dict[Verdict, int]:
    """How many claims of the papers got each verdict, or how many bars of our own."""
    counts = Counter(claim["verdict"] for outcome in outcomes for claim in outcome.claims if claim["bar"] == bars)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def summary(outcomes: list[Outcome], missing: Sequence[NotBuilt], verdicts: bool = True) -> str:
    """How many claims of how many experiments there are, and how many held, as sentences."""
    if not outcomes:
        return "No experiment of this paper yet."
    run = [outcome for outcome in outcomes if outcome.content is not None]
    sentences = []
    if run:
        counts = tally(run)
        words = f": {_counted(counts)}" if verdicts else ""
        what = f"{number(sum(counts.values()), 'claim')} of the papers in {number(len(run), 'experiment')}"
        sentences.append(f"{what}{words}.")
        bars = tally(run, bars=True)
        if sum(bars.values()):
            words = f": {_counted(bars)}" if verdicts else ""
            sentences.append(f"{number(sum(bars.values()), 'bar')} of our own{words}.")
    if len(run) < len(outcomes):
        sentences.append(f"{number(len(outcomes) - len(run), 'experiment')} not run.")
    if missing:
        sentences.append(f"{number(len(missing), 'experiment')} not built.")
    return " ".join(sentences)


def _counted(counts: dict[Verdict, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def number(count: int, what: str) -> str:
    """
    >>> number(1, "claim"), number(3, "claim")
    ('1 claim', '3 claims')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(4.2), duration(90), duration(5400)
    ('4 s', '1.5 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def commit(content: dict[str, Any]) -> str:
    """The commit that was run, short."""
    whole = content["machine"]["commit"]
    if whole is None:
        return "none: an installed package"
    name, _, changed = whole.partition("+")
    return f"{name[:10]}{' with changes' if changed else ''}"


def hardware(contents: list[dict[str, Any]]) -> str:
    """What they ran on: each thing once, with all its values."""
    machines = [content["machine"] for content in contents]
    values = {key: "/".join(dict.fromkeys(str(machine[key]) for machine in machines)) for key in machines[0]}
    threads = "thread" if values["threads"] == "1" else "threads"
    return (
        f"{values['processor']}, {values['threads']} {threads}, torch {values['torch']}, Python {values['python']}, "
        f"whitenorm {values['whitenorm']}"
    )
