"""All experiments with what their runs gave, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from whitenorm_lab.claims.experiment import Experiment
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.rules import RULES, WELCH, Rule
from whitenorm_lab.claims.verdicts import Verdict
from whitenorm_lab.papers import EXPERIMENTS, SETUPS
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt

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
    earlier: bool = False
    """Whether there are results of another set-up than the present one, which say nothing of it."""

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Each as it was judged, explained; of an experiment that was not run, what it would decide."""
        return _asked(self.experiment) if self.content is None else explained(self.experiment, self.content)


def _asked(experiment: Experiment) -> list[dict[str, Any]]:
    unknown = {"ours": "–", "verdict": "not run", "why": "", "reason": "", "short": "", "parts": [{"ours": "–"}]}
    return [{"claim": claim.text, "paper": claim.paper, "bar": claim.bar, **unknown} for claim in experiment.claims]


def explained(experiment: Experiment, content: dict[str, Any]) -> list[dict[str, Any]]:
    """The judged claims of an entry (claim, paper, ours, verdict, why), and what is known of them besides.

    That is their parts, one where there are no more; the reason where one does not hold; what the scale is short of;
    and whether it is a bar of our own.
    """
    scale = content["scale"]
    known = {experiment.word_claim(claim, scale): claim for claim in experiment.claims}
    rows = []
    for row in content["claims"]:
        claim = known.get(row["claim"])
        reason = claim.reason if claim is not None and row["verdict"] == "not held" else ""
        short = "" if scale != "default" or (claim is not None and claim.exact) else experiment.reduction
        known_of = {"reason": reason, "short": short, "bar": claim is not None and claim.bar}
        rows.append({**row, **known_of, "parts": _parts(row), "why": _why(row)})
    return rows


def _parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that were kept, or of older results what is between semicolons, without verdicts of their own."""
    return row.get("parts") or [{"ours": ours, "verdict": None, "why": ""} for ours in row["ours"].split("; ")]


def _why(row: dict[str, Any]) -> str:
    """What the verdict rests on, without what stands with the parts, and without the count of one part."""
    words: str = row["why"].removeprefix(f"1 of 1 parts {row['verdict']}: ")
    return words.partition(": ")[0] if "parts" in row else words.replace("; ", ", ")


def rule_of(content: dict[str, Any]) -> Rule:
    """The rule that results were judged by; those from before there were two do not say."""
    return RULES[content.get("rule", WELCH.name)]


def judged_by(outcomes: Iterable[Outcome]) -> dict[Rule, list[Outcome]]:
    """The experiments that were run, by the rule that they were judged by, the newest rule first."""
    run = [outcome for outcome in outcomes if outcome.content is not None]
    found = {rule: [o for o in run if o.content and rule_of(o.content) == rule] for rule in reversed(RULES.values())}
    return {rule: mine for rule, mine in found.items() if mine}


def gather(folder: Path, scale: str) -> list[Outcome]:
    """Every experiment in the papers' order, with its results at this scale; an error when none was run."""
    outcomes = []
    for experiment in sorted(EXPERIMENTS.values(), key=lambda experiment: [*PAPERS].index(experiment.paper)):
        store = Store(folder, experiment.id, scale)
        content = store.read()
        earlier = content is not None and not experiment.matches_setup(content)
        outcomes.append(Outcome(experiment, SETUPS[experiment.id], store, None if earlier else content, earlier))
    if all(outcome.content is None for outcome in outcomes):
        raise ValueError(
            f"expected results at {scale} scale in {folder} (got none); make some by "
            f"whitenorm-lab reproduce ID --scale {scale} --out {folder}"
        )
    return outcomes


def missing_of(paper: str) -> list[NotBuilt]:
    """What of a paper has no entry."""
    return [missing for missing in NOT_BUILT if missing.paper == paper]


def size(content: dict[str, Any]) -> str:
    """How large a run was: scale, settings, seeds, time, and the parameters of the scale.

    Example::

        >>> from whitenorm_lab.claims.results import Run
        >>> runs = [Run({"lr": lr}, seed, {}, 1.0) for lr in (1, 2) for seed in range(3)]
        >>> machine, parameters = {"threads": 1}, {"train_images": 500, "lrs": [1, 2]}
        >>> size({"scale": "default", "runs": runs, "seconds": 90, "machine": machine, "parameters": parameters})
        'Default scale, 6 runs: 2 settings × 3 seeds, 1.5 min on 1 thread. Train images 500, lrs {1, 2}.'
    """
    runs = content["runs"]
    seeds = len({run.seed for run in runs})
    settings = len({run.key() for run in runs}) // seeds
    first = (
        f"{content['scale'].capitalize()} scale, {number(len(runs), 'run')}: {number(settings, 'setting')} × "
        f"{number(seeds, 'seed')}, {took(content)}."
    )
    parameters = _worded(content["parameters"])
    return f"{first} {parameters[0].upper()}{parameters[1:]}." if parameters else first


def _worded(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_inner(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"{{{', '.join(map(_inner, value))}}}"
    return "all" if value is None else str(value)


def _inner(value: Any) -> str:
    return f"({_worded(value)})" if isinstance(value, dict) else _worded(value)


def took(content: dict[str, Any]) -> str:
    """The time that was measured, and on how much of a machine."""
    return f"{duration(content['seconds'])} on {number(content['machine']['threads'], 'thread')}"


def tally(outcomes: Iterable[Outcome], bars: bool = False) -> dict[Verdict, int]:
    """How many claims of the papers got each verdict, or how many bars of our own."""
    counts = Counter(claim["verdict"] for outcome in outcomes for claim in outcome.claims if claim["bar"] == bars)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def summary(outcomes: list[Outcome], missing: Sequence[NotBuilt], verdicts: bool = True) -> str:
    """How many claims of how many experiments there are, and how many held."""
    return " ".join(sentences(outcomes, missing, verdicts))


def sentences(outcomes: list[Outcome], missing: Sequence[NotBuilt], verdicts: bool = True) -> list[str]:
    """The claims, the bars of our own if there are any, and what was not run or not built, a sentence each."""
    if not outcomes:
        return ["No experiment of this paper yet."]
    counts, bars = tally(outcomes), tally(outcomes, bars=True)
    what = f"{number(sum(counts.values()), 'claim')} of the papers in {number(len(outcomes), 'experiment')}"
    said = [f"{what}{_counted(counts) if verdicts else ''}."]
    if sum(bars.values()):
        said.append(f"{number(sum(bars.values()), 'bar')} of our own{_counted(bars) if verdicts else ''}.")
    missed = sum(outcome.content is None for outcome in outcomes)
    if missed:
        earlier = sum(outcome.earlier for outcome in outcomes)
        again = f", {earlier} of them since their set-up was changed" if earlier else ""
        said.append(f"{number(missed, 'experiment')} not run{again}.")
    if missing:
        said.append(f"{number(len(missing), 'experiment')} not built.")
    return said


def _counted(counts: dict[Verdict, int]) -> str:
    return ": " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


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
