"""The command ``whitenorm-lab reproduce``: list the experiments, or run some of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from whitenorm.cli import suggest
from whitenorm_lab.claims.experiment import SCALES, Experiment
from whitenorm_lab.claims.outcomes import describe_rule, describe_time, explain_claims
from whitenorm_lab.claims.progress import show_progress
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.runner import judge_again, reproduce
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.not_built import NOT_BUILT
from whitenorm_lab.terminal import create_console, print_table


@dataclass
class Reproduce:
    """Run experiments of the papers and report for every claim whether it held.

    Writes JSON with the raw values of every seed, and a figure like the paper's. Called again after an interruption, it
    resumes.
    """

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments to run; lists them if none is given."""
    list: bool = False
    """List all experiments with paper, figure, cost, data, and the verdicts of the last run."""
    scale: Literal["smoke", "default", "paper"] = "default"
    """smoke: seconds, decides nothing; default: minutes to hours on two cores; paper: the paper's own size."""
    judge: bool = False
    """Run nothing; judge and draw the stored runs again, by the claims and figures of this version."""
    seeds: int | None = None
    """Number of seeds, if not the experiment's own."""
    data: Path | None = None
    """Folder of data sets. Default: $WHITENORM_DATA."""
    out: Path = Path("results")
    """Folder for results."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.ids if name not in EXPERIMENTS]
        if unknown:
            hint = "".join(suggest(name, EXPERIMENTS) for name in unknown)
            raise ValueError(
                f"expected experiments that whitenorm-lab reproduce --list shows (got {', '.join(unknown)}){hint}"
            )
        if self.judge and self.seeds is not None:
            raise ValueError("expected --judge without --seeds (got both): it judges the seeds that were run")
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"expected at least one seed (got {self.seeds})")


def main(args: list[str]) -> None:
    """Parse the arguments and run the command."""
    run(tyro.cli(Reproduce, prog="whitenorm-lab reproduce", args=args))


def run(options: Reproduce) -> None:
    """List the experiments, or run some and print their verdicts."""
    console = create_console()
    if options.list or not options.ids:
        print_table(console, build_experiment_table(options.out))
        return
    for name in options.ids:
        print_table(console, build_verdict_table(_reproduce(EXPERIMENTS[name], options, console)))
        store = Store(options.out, name, options.scale)
        console.print(f"Results: {store.results}   Figure: {store.picture}\n", soft_wrap=True)


def _reproduce(experiment: Experiment, options: Reproduce, console: Console) -> dict[str, Any]:
    if options.judge:
        return judge_again(experiment, options.out, options.scale)
    with show_progress(f"{experiment.id} ({options.scale})", console) as on_progress:
        return reproduce(experiment, options.out, options.scale, options.seeds, options.data, on_progress)


def build_experiment_table(folder: Path) -> Table:
    """Return a table of all experiments with the verdicts of their last runs."""
    table = Table(title="Experiments of the papers")
    table.add_column("id", no_wrap=True)
    for heading in ("what", "cost, data", "last run"):
        table.add_column(heading, overflow="fold")
    for experiment in EXPERIMENTS.values():
        contents = [content for scale in SCALES if (content := Store(folder, experiment.id, scale).read())]
        table.add_row(
            experiment.id,
            f"{experiment.paper} {experiment.where}: {experiment.title}",
            f"{_format_cost(experiment, contents)}, {' and '.join(experiment.data) or 'no data'}",
            _format_last_run(experiment, contents),
        )
    for missing in NOT_BUILT:
        table.add_row("–", f"{missing.paper} {missing.where}: {missing.title}", "–", f"not built: {missing.why}")
    return table


def _format_cost(experiment: Experiment, contents: list[dict[str, Any]]) -> str:
    """Format the measured time of the default scale, or the estimate if it has not been run."""
    for content in contents:
        if content["scale"] == "default" and experiment.matches_setup(content):
            return describe_time(content)
    return f"about {experiment.cost}"


def _format_last_run(experiment: Experiment, contents: list[dict[str, Any]]) -> str:
    if not contents:
        return "not run"
    last = max(contents, key=lambda content: content["finished"])
    when = f"{last['scale']}, {last['finished'][:10]}"
    if not experiment.matches_setup(last):
        return f"{when}: of an earlier set-up"
    claims = explain_claims(experiment, last)
    verdicts = _count_verdicts([claim for claim in claims if not claim["bar"]])
    bars = _count_verdicts([claim for claim in claims if claim["bar"]])
    return f"{when}: {verdicts or 'no claim'}" + (f"; bars: {bars}" if bars else "")


def _count_verdicts(claims: list[dict[str, Any]]) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def build_verdict_table(content: dict[str, Any]) -> Table:
    """Return a table of an experiment's claims with the paper's numbers, ours, and the verdicts."""
    claims = explain_claims(EXPERIMENTS[content["experiment"]], content)
    reduction = next((claim["short"] for claim in claims if claim["short"]), "")
    table = Table(
        title=f"{content['experiment']}: {content['title']} ({content['scale']}, {describe_time(content)})",
        caption=f"{_REDUCED} {reduction}\n" * bool(reduction) + f"Judged by {describe_rule(content)}.",
        show_lines=True,
    )
    for heading in ("claim", "paper", "here", "verdict"):
        table.add_column(heading, overflow="fold")
    for claim in claims:
        text = f"bar of our own: {claim['claim']}" if claim["bar"] else claim["claim"]
        verdict = f"{claim['verdict']}{_REDUCED if claim['short'] else ''}"
        verdict += f" ({claim['why']})" if claim["why"] else ""
        ours = "\n".join(map(_format_part, claim["parts"]))
        table.add_row(text, claim["paper"], ours, f"{verdict} {claim['reason']}".strip())
    return table


# Marks claims whose runs are smaller than the paper's.
_REDUCED = "†"


def _format_part(part: dict[str, Any]) -> str:
    return f"{part['ours']} ({part['verdict']}, {part['why']})" if part["verdict"] else str(part["ours"])
