"""``whitenorm-lab reproduce``: the experiments in a table, and one of them or all run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from whitenorm._suggest import suggest
from whitenorm_lab.claims.experiment import SCALES, Experiment
from whitenorm_lab.claims.outcomes import describe_time, explain_claims, rule_of
from whitenorm_lab.claims.progress import shown
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.runner import judge_again, reproduce
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.not_built import NOT_BUILT
from whitenorm_lab.terminal import print_table, terminal


@dataclass
class Reproduce:
    """Run experiments of the papers, and say of every claim whether it held.

    Results are JSON with the raw values of every seed, and the paper's figure as a picture. An interrupted run goes on
    where it was when called again.
    """

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which experiments, one after the other; none lists them."""
    list: bool = False
    """Show all experiments: paper, figure, cost, data, and how the last run ended."""
    scale: Literal["smoke", "default", "paper"] = "default"
    """smoke takes seconds and decides nothing, default minutes on two cores, paper is the paper's own size."""
    judge: bool = False
    """Run nothing: judge and draw what was run, by the claims and figures of this version."""
    seeds: int | None = None
    """How many seeds instead of the experiment's own number."""
    data: Path | None = None
    """The folder of data sets; by default $WHITENORM_DATA."""
    out: Path = Path("results")
    """The folder for results."""

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
    """Parse the arguments and run."""
    run(tyro.cli(Reproduce, prog="whitenorm-lab reproduce", args=args))


def run(options: Reproduce) -> None:
    """List, or run and print the verdicts."""
    console = terminal()
    if options.list or not options.ids:
        print_table(console, table(options.out))
        return
    for name in options.ids:
        print_table(console, verdicts(_content(EXPERIMENTS[name], options, console)))
        store = Store(options.out, name, options.scale)
        console.print(f"Results: {store.results}   Picture: {store.picture}\n", soft_wrap=True)


def _content(experiment: Experiment, options: Reproduce, console: Console) -> dict[str, Any]:
    if options.judge:
        return judge_again(experiment, options.out, options.scale)
    with shown(f"{experiment.id} ({options.scale})", console) as watch:
        return reproduce(experiment, options.out, options.scale, options.seeds, options.data, watch)


def table(folder: Path) -> Table:
    """Every experiment, with how its last run ended."""
    view = Table(title="Experiments of the papers")
    view.add_column("id", no_wrap=True)
    for heading in ("what", "cost, data", "last run"):
        view.add_column(heading, overflow="fold")
    for experiment in EXPERIMENTS.values():
        view.add_row(
            experiment.id,
            f"{experiment.paper} {experiment.where}: {experiment.title}",
            f"{_cost(folder, experiment)}, {' and '.join(experiment.data) or 'no data'}",
            _last_run(folder, experiment),
        )
    for missing in NOT_BUILT:
        view.add_row("–", f"{missing.paper} {missing.where}: {missing.title}", "–", f"not built: {missing.why}")
    return view


def _cost(folder: Path, experiment: Experiment) -> str:
    """What the default scale took, or where it has not been run is said to take."""
    content = Store(folder, experiment.id, "default").read()
    return f"about {experiment.cost}" if content is None or not experiment.made(content) else describe_time(content)


def _last_run(folder: Path, experiment: Experiment) -> str:
    contents = [content for scale in SCALES if (content := Store(folder, experiment.id, scale).read()) is not None]
    if not contents:
        return "not run"
    last = max(contents, key=lambda content: content["finished"])
    if not experiment.made(last):
        return f"{last['scale']}, {last['finished'][:10]}: of an earlier set-up"
    claims = explain_claims(experiment, last)
    words = _counted([claim["verdict"] for claim in claims if not claim["bar"]])
    bars = _counted([claim["verdict"] for claim in claims if claim["bar"]])
    return f"{last['scale']}, {last['finished'][:10]}: {words or 'no claim'}" + (f"; bars: {bars}" if bars else "")


def _counted(verdicts: Sequence[str]) -> str:
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))


def verdicts(content: dict[str, Any]) -> Table:
    """The claims of a run: the paper's numbers, ours, and whether it held."""
    claims = explain_claims(EXPERIMENTS[content["experiment"]], content)
    short = next((claim["short"] for claim in claims if claim["short"]), "")
    view = Table(
        title=f"{content['experiment']}: {content['title']} ({content['scale']}, {describe_time(content)})",
        caption=f"{_SHORT} {short}\n" * bool(short) + f"Judged by {rule_of(content).words}.",
        show_lines=True,
    )
    for heading in ("claim", "paper", "here", "verdict"):
        view.add_column(heading, overflow="fold")
    for claim in claims:
        view.add_row(*_row(claim))
    return view


# With a claim whose run is smaller than the paper's, and before what it is short of.
_SHORT = "†"


def _row(claim: dict[str, Any]) -> tuple[str, ...]:
    what = f"bar of our own: {claim['claim']}" if claim["bar"] else claim["claim"]
    verdict = f"{claim['verdict']}{_SHORT if claim['short'] else ''}" + (f" ({claim['why']})" if claim["why"] else "")
    return what, claim["paper"], "\n".join(map(_part, claim["parts"])), f"{verdict} {claim['reason']}".strip()


def _part(part: dict[str, Any]) -> str:
    return f"{part['ours']} ({part['verdict']}, {part['why']})" if part["verdict"] else str(part["ours"])
