"""Compare Minimax with ZCA and Newton by error and time, as the size and the condition grow.

``python -m benchmarks.exact_solvers`` measures; ``make pages`` writes the table of docs/benchmarks.md.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.roofline.work import count_operations
from whitenorm.solvers import ZCA, Minimax, Newton, Solver, inverse_sqrt
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.timing import time_interleaved

RESULTS = Path(__file__).parent / "results" / "exact_solvers.json"
SOLVERS: tuple[Solver, ...] = (ZCA(), Minimax(), Newton(5), Newton(17))
# Matrices of each size: as many as 512 channels have groups.
SIZES = {16: 32, 32: 16, 64: 8, 128: 4, 256: 2}
CONDITIONS = (1e1, 1e2, 1e4, 1e5, 1e6)


@dataclass
class Exactness:
    """Measure the error of each solver for spectra of several condition numbers, and its time forward and backward."""

    rounds: int = 200
    """Timed rounds of each size."""
    budget: float = 20.0
    """Most seconds of timing for each size."""
    out: Path = RESULTS
    """JSON file of the results."""


def make_covariances(size: int, batch: int, condition: float) -> Tensor:
    """Return covariances in float64 whose eigenvalues are geometrically spaced, with random eigenvectors."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(batch, size, size, generator=generator, dtype=torch.float64))[0]
    values = torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64)
    return vectors * values @ vectors.mT


def measure_error(solver: Solver, cov: Tensor) -> float:
    """Return ‖WΣWᵀ - I‖ / √K of W in float32, the median over the matrices."""
    whitening = inverse_sqrt(cov.float(), solver).double()
    identity = torch.eye(cov.shape[-1], dtype=torch.float64)
    errors = torch.linalg.matrix_norm(whitening @ cov @ whitening.mT - identity) / cov.shape[-1] ** 0.5
    return errors.median().item()


def measure(size: int, batch: int, rounds: int, budget: float) -> dict[str, Any]:
    covs = {condition: make_covariances(size, batch, condition) for condition in CONDITIONS}
    cov = covs[1e2].float().requires_grad_()
    grad = torch.randn_like(cov)

    def solve(solver: Solver) -> None:
        with torch.no_grad():
            inverse_sqrt(cov, solver)

    def step(solver: Solver) -> None:
        inverse_sqrt(cov, solver).backward(grad)
        cov.grad = None

    runs = {
        f"{solver} {kind.__name__}": functools.partial(kind, solver) for solver in SOLVERS for kind in (solve, step)
    }
    times = time_interleaved(runs, rounds, budget)
    return {
        str(solver): {
            "errors": {f"{condition:.0e}": measure_error(solver, covs[condition]) for condition in CONDITIONS},
            "solve_ms": 1e3 * statistics.median(times[f"{solver} solve"]),
            "step_ms": 1e3 * statistics.median(times[f"{solver} step"]),
        }
        for solver in SOLVERS
    }


def count_launches(solver: Solver) -> dict[str, int]:
    """Return the kernels that a GPU would be given, forward and backward, counted on the meta device.

    ZCA's decomposition counts as one, but is many launches and waits for the host.
    """
    cov = torch.empty(8, 64, 64, device="meta", requires_grad=True)
    whitening, forward = count_operations(lambda: inverse_sqrt(cov, solver))
    grad = torch.empty_like(whitening)
    _, backward = count_operations(lambda: torch.autograd.grad(whitening, cov, grad))
    return {"forward": len(forward), "backward": len(backward)}


def format_launches() -> str:
    """Return a row for each solver."""
    lines = ["| solver | kernels forward | kernels backward |", "| --- | ---: | ---: |"]
    for solver in SOLVERS:
        counts = count_launches(solver)
        lines.append(f"| `{solver}` | {counts['forward']} | {counts['backward']} |")
    return "\n".join(lines)


def format_table(results: dict[str, Any]) -> str:
    """Return a row for each size and solver."""
    conditions = [f"{condition:.0e}" for condition in CONDITIONS]
    header = [
        "K",
        "matrices",
        "solver",
        *(f"κ = {condition}" for condition in conditions),
        "solve, ms",
        "with backward, ms",
    ]
    lines = [f"| {' | '.join(header)} |", "| ---: | ---: | --- " + "| ---: " * (len(conditions) + 2) + "|"]
    for entry in results["sizes"]:
        for solver, row in entry["solvers"].items():
            cells = [str(entry["size"]), str(entry["batch"]), f"`{solver}`"]
            cells += [f"{row['errors'][condition]:.0e}" for condition in conditions]
            cells += [f"{row['solve_ms']:.2f}", f"{row['step_ms']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    machine = results["machine"]
    where = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}"
    caption = f"Errors and median milliseconds of all matrices in float32. {where}, commit `{machine['commit'][:10]}`."
    return "\n".join([caption, "", *lines])


def format_promises() -> str:
    """Return the largest deviation of a whitened variance from 1, by condition number and steps of Minimax."""
    steps = range(4, 10)
    lines = [f"| κ·√K | {' | '.join(f'{count} steps' for count in steps)} |", "| ---: " * (len(steps) + 1) + "|"]
    for condition in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7):
        errors = [Minimax(count).largest_error(condition, 1) for count in steps]
        lines.append(f"| {condition:.0e} | {' | '.join(f'{error:.0e}' for error in errors)} |")
    return "\n".join(lines)


def run(options: Exactness) -> dict[str, Any]:
    """Measure all sizes, print and write."""
    results: dict[str, Any] = {"machine": describe_machine(), "sizes": []}
    for size, batch in SIZES.items():
        solvers = measure(size, batch, options.rounds, options.budget)
        results["sizes"].append({"size": size, "batch": batch, "solvers": solvers})
    print(format_table(results))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    import tyro

    run(tyro.cli(Exactness))
