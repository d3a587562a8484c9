"""All experiments with what their runs gave, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from whitenorm.lab.experiments import EXPERIMENTS, SETUPS
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
        """Each as it was judged: claim, paper, ours, verdict, why; and the reason, where one is known."""
        if self.content is None:
            return []
        scale = self.content["scale"]
        return [{**claim, "reason": self.experiment.reason(claim, scale)} for claim in self.content["claims"]]


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


def tally(outcomes: Iterable[Outcome]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    counts = Counter(claim["verdict"] for outcome in outcomes for claim in outcome.claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def summary(outcomes: list[Outcome], verdicts: bool = True) -> str:
    """How many claims of how many experiments there are, and how many held, as sentences."""
    if not outcomes:
        return "No experiment of this paper yet."
    run = [outcome for outcome in outcomes if outcome.content is not None]
    counts = tally(run)
    sentences = []
    if run:
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        what = f"{number(sum(counts.values()), 'claim')} of {number(len(run), 'experiment')}"
        sentences.append(f"{what}: {words}." if verdicts else f"{what}.")
    if len(run) < len(outcomes):
        sentences.append(f"{number(len(outcomes) - len(run), 'experiment')} not run.")
    return " ".join(sentences)


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
