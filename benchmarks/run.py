"""Run the benchmark suite with progress, and write its results, tables and picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import layers, models, pages, picture, report, solvers, sweep, tokens
from whitenorm.ops.native.library import load_library
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.terminal import create_console
from whitenorm_lab.timing import measure_sgemm_rate

ROOT = Path(__file__).parent
# Rounds of the layers, other shapes and solvers, which fewer fit into the seconds of a case if a round takes long.
_ROUNDS = 100


@dataclass
class Bench:
    """Time every layer, solver and model beside PyTorch's norms, the papers' formulation and the hardware's floor.

    Leave the machine idle meanwhile, because other work changes the numbers. Called again after an interruption, it
    resumes.
    """

    quick: bool = False
    """A few shapes, solvers and models, the models at 112²: about a minute. Does not touch README and docs."""
    out: Path | None = None
    """JSON file of the results; by default under benchmarks/results."""
    tables: bool = False
    """Only generate tables and picture from the last results."""


class Case(NamedTuple):
    """A part of the results and a name within it, a function that measures it, and the seconds that it takes."""

    part: str
    name: str
    seconds: float
    measure: Callable[[], Any]


def list_cases(quick: bool) -> list[Case]:
    """Return all cases; their seconds are budgets, and for networks those of two idle cores."""
    share = 0.1 if quick else 1.0
    rounds = 8 if quick else _ROUNDS
    cases = [
        # Inference takes half the time of training.
        Case("layers", _join(shape), 36 * share, partial(layers.measure, shape, rounds, 24 * share))
        for shape in (layers.QUICK if quick else layers.SHAPES)
    ]
    cases += [
        Case("solvers", f"K={size}, {batch}", 4 * share, partial(solvers.measure, size, batch, rounds, 4 * share))
        for size, batch in (solvers.QUICK if quick else solvers.SIZES)
    ]
    cases += [
        Case(
            "sweep",
            f"{name}, K={features}, {_join(shape)}",
            1.9,
            partial(sweep.measure, name, features, shape, rounds, 1.6),
        )
        for name, features, shape in sweep.cases(quick)
    ]
    cases += [
        Case("tokens", name, 75 * share, partial(tokens.measure, name, make, x, 3 if quick else 20))
        for name, (make, x) in tokens.families(quick).items()
    ]
    names, size = (models.QUICK, (112, 8)) if quick else (models.NAMES, (224, 16))
    family = models.resnet50(names, *size)
    return [*cases, Case("models", family.name, 240 * share, partial(models.measure, family, 3 if quick else 8))]


def _join(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def run(bench: Bench) -> dict[str, Any]:
    """Measure, write the JSON, and make tables and picture from it."""
    console = create_console()
    path = bench.out or ROOT / "results" / ("quick.json" if bench.quick else "full.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_suffix(".partial.json")
    results = json.loads(path.read_text()) if bench.tables else measure(list_cases(bench.quick), partial_path, console)
    path.write_text(json.dumps({**results, "quick": bench.quick}, indent=1) + "\n")
    partial_path.unlink(missing_ok=True)
    picture.draw(results, path.with_suffix(".png"))
    path.with_suffix(".md").write_text(report.format_all(results) + "\n")
    if bench.out is None and not bench.quick:
        pages.write()
    console.print(Markdown(f"{report.cost_table(results)}\n\n{report.target_table(results)}"))
    console.print(f"Results: {path}   Picture: {path.with_suffix('.png')}", soft_wrap=True)
    return results


def measure(cases: list[Case], path: Path, console: Console) -> dict[str, Any]:
    """Measure all cases; those that an interrupted call has stored in ``path`` on this machine are not repeated."""
    torch.manual_seed(0)
    header = {"machine": describe_machine(), "binary": load_library().description}
    stored = _read_stored(path, header)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[cases]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(case.seconds for case in cases), done=0, cases=len(cases))
        for done, case in enumerate(cases, 1):
            key = f"{case.part}: {case.name}"
            progress.update(task, description=f"{key:<40.40}")
            if key not in stored:
                stored[key] = case.measure()
                temporary = path.with_suffix(".tmp")
                temporary.write_text(json.dumps({**header, "cases": stored}))
                temporary.replace(path)
            progress.update(task, advance=case.seconds, done=done)
    results: dict[str, Any] = {**header, "sgemm_gflops": measure_sgemm_rate() / 1e9}
    for case in cases:
        results.setdefault(case.part, []).append(stored[f"{case.part}: {case.name}"])
    return results


def _read_stored(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Return the cases of an interrupted call by the same code on the same machine."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content["cases"] if {key: content.get(key) for key in header} == header else {}
