"""Run the benchmark suite with progress bars, and write its results, tables and picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks import layers, models, pages, picture, report, solvers, sweep, tokens
from whitenorm_lab.costs import RESNET50
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.terminal import create_console
from whitenorm_lab.timing import measure_sgemm_rate

ROOT = Path(__file__).parent


@dataclass
class Bench:
    """Time every layer, solver and model against native norms, the papers' formulation and the hardware's floor.

    Leave the machine idle meanwhile, because other work changes the numbers.
    """

    quick: bool = False
    """A few shapes, solvers and models, the models at 112²: about a minute. Does not touch README and docs."""
    out: Path | None = None
    """JSON file of the results; by default under benchmarks/results."""
    tables: bool = False
    """Only generate tables and picture from the last results."""
    models: bool = True
    """Also time ResNet-50; otherwise the results file keeps its last times."""


def run(bench: Bench) -> dict[str, Any]:
    """Measure, write the JSON, and make tables and picture from it."""
    console = create_console()
    path = bench.out or ROOT / "results" / ("quick.json" if bench.quick else "full.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if bench.tables else measure(bench, console)
    if not bench.models and path.exists():
        results["models"] = json.loads(path.read_text()).get("models", [])
    path.write_text(json.dumps(results, indent=1) + "\n")
    picture.draw(results, path.with_suffix(".png"))
    text = report.markdown(results)
    path.with_suffix(".md").write_text(f"{text}\n\n{report.sweep_table(results)}\n\n{report.solver_table(results)}\n")
    if bench.out is None and not bench.quick:
        pages.write()
    console.print(Markdown(text))
    console.print(f"Results: {path}   Picture: {path.with_suffix('.png')}", soft_wrap=True)
    return results


def measure(bench: Bench, console: Console) -> dict[str, Any]:
    """Measure everything, with one progress bar per part."""
    shapes = layers.QUICK if bench.quick else layers.SHAPES
    sizes = solvers.QUICK if bench.quick else solvers.SIZES
    families = _families(bench.quick) if bench.models else []
    rounds, budget = (8, 6.0) if bench.quick else (12, 12.0)
    torch.manual_seed(0)
    rate = measure_sgemm_rate()
    columns = (
        TextColumn("{task.description:>9} {task.fields[now]:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    results: dict[str, Any] = {"machine": describe_machine(), "quick": bench.quick, "sgemm_gflops": rate / 1e9}
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("layers", total=len(shapes), now="")
        results["layers"] = []
        for shape in shapes:
            progress.update(task, now="×".join(map(str, shape)))
            results["layers"].append(layers.measure(shape, rate, rounds, budget))
            progress.advance(task)
        task = progress.add_task("solvers", total=len(sizes), now="")
        results["solvers"] = []
        for size, batch in sizes:
            progress.update(task, now=f"K={size}, {batch}")
            results["solvers"].append(solvers.measure(size, batch, rounds, budget))
            progress.advance(task)
        between = list(sweep.cases(bench.quick))
        task = progress.add_task("between", total=len(between), now="")
        results["sweep"] = []
        for name, features, shape in between:
            progress.update(task, now="×".join(map(str, shape)))
            results["sweep"].append(sweep.measure(name, features, shape, rounds, budget / 12))
            progress.advance(task)
        nets = tokens.families(bench.quick)
        task = progress.add_task("tokens", total=len(nets), now="")
        results["tokens"] = []
        for name, (make, x) in nets.items():
            progress.update(task, now=name)
            results["tokens"].append(tokens.measure(name, make, x, 3 if bench.quick else 5))
            progress.advance(task)
        results["models"] = []
        for family in families:
            task = progress.add_task(family.name, total=len(family.models), now="")
            started = iter(range(0, len(family.models), models.TOGETHER))

            def advance(name: str, task: TaskID = task, started: Iterator[int] = started) -> None:
                progress.update(task, now=name, completed=next(started))

            results["models"].append(models.measure(family, 3 if bench.quick else 4, advance))
            progress.update(task, completed=len(family.models))
    return results


def _families(quick: bool) -> list[models.Family]:
    if quick:
        return [models.resnet50(models.QUICK, 112, 8)]
    return [models.resnet50(list(RESNET50), 224, 16), models.vgg_a(128)]
