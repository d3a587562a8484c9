"""Stored results of all experiments, and summaries of them in words and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from whitenorm_lab.claims import rules
from whitenorm_lab.claims.experiment import Experiment
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.verdicts import Verdict
from whitenorm_lab.papers import EXPERIMENTS, SETUPS
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Paper(NamedTuple):
    """Title and address of a paper."""

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
    """An experiment with the description of its set-up and, if it was run, its results."""

    experiment: Experiment
    setup: str
    store: Store
    content: dict[str, Any] | None
    earlier: bool = False
    """Whether the stored results are of an earlier set-up of the experiment; then ``content`` is None."""

    @property
    def claims(self) -> list[dict[str, Any]]:
        """The judged claims with explanations; without results, the experiment's claims with verdict "not run"."""
        if self.content is None:
            return _list_unjudged_claims(self.experiment)
        return explain_claims(self.experiment, self.content)

    @property
    def reduction(self) -> str:
        """How the run is smaller than the paper's; empty if no claim depends on it."""
        return next((claim["short"] for claim in self.claims if claim["short"]), "")


def _list_unjudged_claims(experiment: Experiment) -> list[dict[str, Any]]:
    unknown = {"ours": "–", "verdict": "not run", "why": "", "reason": "", "short": "", "parts": [{"ours": "–"}]}
    return [{"claim": claim.text, "paper": claim.paper, "bar": claim.bar, **unknown} for claim in experiment.claims]


def explain_claims(experiment: Experiment, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the judged claims of a result (claim, paper, ours, verdict, why) with these keys added.

    ``parts``: the parts of the claim, at least one. ``reason``: the known reason why it does not hold. ``short``: how
    the run is smaller than the paper's. ``bar``: whether it is a bar of our own.
    """
    scale = content["scale"]
    claims = {experiment.word_claim(claim, scale): claim for claim in experiment.claims}
    rows = []
    for row in content["claims"]:
        claim = claims.get(row["claim"])
        reason = claim.reason if claim is not None and row["verdict"] == "not held" else ""
        short = "" if scale != "default" or (claim is not None and claim.exact) else experiment.reduction
        added = {"reason": reason, "short": short, "bar": claim is not None and claim.bar}
        rows.append({**row, **added, "parts": _split_parts(row), "why": _shorten_why(row)})
    return rows


def _split_parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stored parts; older results have none, and their numbers are split at semicolons."""
    return row.get("parts") or [{"ours": ours, "verdict": None, "why": ""} for ours in row["ours"].split("; ")]


def _shorten_why(row: dict[str, Any]) -> str:
    """Return the reason for a verdict, without what the parts repeat and without the count of a single part."""
    words: str = row["why"].removeprefix(f"1 of 1 parts {row['verdict']}: ")
    return words.partition(": ")[0] if "parts" in row else words.replace("; ", ", ")


def describe_rule(content: dict[str, Any]) -> str:
    """Describe the rule by which results were judged."""
    is_current = content.get("rule") == rules.NAME
    return rules.DESCRIPTION if is_current else "an earlier rule; --judge applies the current one"


def load_outcomes(folder: Path, scale: str) -> list[Outcome]:
    """Load the results of every experiment at this scale, ordered by paper; raise an error if there are none."""
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


def find_not_built(paper: str) -> list[NotBuilt]:
    """Return the figures and tables of a paper that no experiment reproduces."""
    return [missing for missing in NOT_BUILT if missing.paper == paper]


def describe_run(content: dict[str, Any]) -> str:
    """Describe the size of a run: scale, settings, seeds, time, and the parameters of the scale.

    Example::

        >>> from whitenorm_lab.claims.results import Run
        >>> runs = [Run({"lr": lr}, seed, {}, 1.0) for lr in (1, 2) for seed in range(3)]
        >>> content = {"scale": "default", "runs": runs, "seconds": 90, "machine": {"threads": 1}}
        >>> describe_run({**content, "parameters": {"train_images": 500, "lrs": [1, 2]}})
        'Default scale, 6 runs: 2 settings × 3 seeds, 1.5 min on 1 thread. Train images 500, lrs {1, 2}.'
    """
    runs = content["runs"]
    seeds = count_seeds(content)
    settings = len({run.key() for run in runs}) // seeds
    first = (
        f"{content['scale'].capitalize()} scale, {pluralize(len(runs), 'run')}: {pluralize(settings, 'setting')} × "
        f"{pluralize(seeds, 'seed')}, {describe_time(content)}."
    )
    parameters = _format_value(content["parameters"])
    return f"{first} {parameters[0].upper()}{parameters[1:]}." if parameters else first


def count_seeds(content: dict[str, Any]) -> int:
    """Return the number of different seeds of a result's runs."""
    return len({run.seed for run in content["runs"]})


def _format_value(value: Any, nested: bool = False) -> str:
    if isinstance(value, dict):
        words = ", ".join(f"{name.replace('_', ' ')} {_format_value(inner, True)}" for name, inner in value.items())
        return f"({words})" if nested else words
    if isinstance(value, list):
        return f"{{{', '.join(_format_value(inner, True) for inner in value)}}}"
    return "all" if value is None else str(value)


def describe_time(content: dict[str, Any]) -> str:
    """Describe the measured time of all runs, and the number of threads."""
    return f"{format_duration(content['seconds'])} on {pluralize(content['machine']['threads'], 'thread')}"


def count_verdicts(outcomes: Iterable[Outcome], bars: bool = False) -> dict[Verdict, int]:
    """Count the verdicts of the papers' claims, or those of our own bars."""
    counts = Counter(claim["verdict"] for outcome in outcomes for claim in outcome.claims if claim["bar"] == bars)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def summarize(outcomes: list[Outcome], missing: Sequence[NotBuilt], verdicts: bool = True) -> str:
    """Return the sentences of :func:`summarize_by_topic` as one paragraph."""
    return " ".join(summarize_by_topic(outcomes, missing, verdicts))


def summarize_by_topic(outcomes: list[Outcome], missing: Sequence[NotBuilt], verdicts: bool = True) -> list[str]:
    """Return one sentence each on the papers' claims, our own bars, experiments not run, and experiments not built."""
    if not outcomes:
        return ["No experiment of this paper yet."]
    counts, bars = count_verdicts(outcomes), count_verdicts(outcomes, bars=True)
    claims = f"{pluralize(sum(counts.values()), 'claim')} of the papers in {pluralize(len(outcomes), 'experiment')}"
    lines = [f"{claims}{_list_counts(counts) if verdicts else ''}."]
    if sum(bars.values()):
        lines.append(f"{pluralize(sum(bars.values()), 'bar')} of our own{_list_counts(bars) if verdicts else ''}.")
    not_run = sum(outcome.content is None for outcome in outcomes)
    if not_run:
        earlier = sum(outcome.earlier for outcome in outcomes)
        again = f", {earlier} of them since their set-up was changed" if earlier else ""
        lines.append(f"{pluralize(not_run, 'experiment')} not run{again}.")
    if missing:
        lines.append(f"{pluralize(len(missing), 'experiment')} not built.")
    return lines


def _list_counts(counts: dict[Verdict, int]) -> str:
    return ": " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example::

        >>> pluralize(1, "claim"), pluralize(3, "claim")
        ('1 claim', '3 claims')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours.

    Example::

        >>> format_duration(4.2), format_duration(90), format_duration(5400)
        ('4 s', '1.5 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def format_commit(content: dict[str, Any]) -> str:
    """Abbreviate the commit of the code that ran."""
    name, _, changes = (content["machine"]["commit"] or "").partition("+")
    return f"{name[:10]}{' with changes' if changes else ''}" if name else "none: an installed package"


def describe_hardware(contents: list[dict[str, Any]]) -> str:
    """Describe the processors, threads and versions that results were made with, each value once."""
    machines = [content["machine"] for content in contents]
    values = {key: "/".join(dict.fromkeys(str(machine[key]) for machine in machines)) for key in machines[0]}
    threads = "thread" if values["threads"] == "1" else "threads"
    return (
        f"{values['processor']}, {values['threads']} {threads}, torch {values['torch']}, Python {values['python']}, "
        f"whitenorm {values['whitenorm']}"
    )


def describe_kernels(content: dict[str, Any]) -> str:
    """Kernels that ran, of experiments that store them by model; otherwise empty.

    Example::

        >>> from whitenorm_lab.claims.results import Run
        >>> describe_kernels({"runs": [Run({}, 0, {"kernels": {"GW": "kernels-avx2", "DBN": "torch"}}, 1.0)]})
        'Kernels: kernels-avx2 (GW), torch (DBN).'
    """
    models: dict[str, dict[str, None]] = {}
    for run in content["runs"]:
        for model, kernels in run.values.get("kernels", {}).items():
            models.setdefault(kernels, {})[model] = None
    words = [f"{kernels} ({', '.join(names)})" for kernels, names in models.items()]
    return f"Kernels: {', '.join(words)}." if words else ""
