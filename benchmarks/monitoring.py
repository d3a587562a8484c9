"""Measure the overhead of monitoring a training: ``python -m benchmarks.monitoring``."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy

import whitenorm
from whitenorm.diagnostics import monitor
from whitenorm_lab import nets
from whitenorm_lab.machine import describe_machine

RESULTS = Path(__file__).parent / "results" / "monitoring.json"


@dataclass
class Overhead:
    """Train small models with and without a monitor at its default interval, and compare."""

    seconds: float = 60.0
    """How long each model trains, every other step with a monitor."""
    out: Path = RESULTS
    """JSON file of the results."""


def build_mlp() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), whitenorm.IterNorm(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-20, BatchNorm, 128×3×32×32": (lambda: nets.build("resnet20", 10), (128, 3, 32, 32)),
    "ResNet-20, IterNorm, 128×3×32×32": (lambda: nets.build("resnet20", 10, "iternorm"), (128, 3, 32, 32)),
    "torchvision resnet18, IterNorm L1, 32×3×64×64": (
        lambda: whitenorm.convert_(torchvision.models.resnet18(), "iternorm", "l1"),
        (32, 3, 64, 64),
    ),
    "MLP, IterNorm, 128×64": (build_mlp, (128, 64)),
}


def measure(make: Callable[[], nn.Module], shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Measure a model with and without a monitor, alternating their steps, in CPU time of the process.

    The first step is always watched, which shows more in a short run; ``overhead_after_first`` leaves it out.
    """
    torch.manual_seed(0)
    models = {name: make() for name in ("plain", "watched", "always")}
    step = {name: _build_step(model, shape) for name, model in models.items()}
    for run in step.values():
        run()
    rows: list[int] = []
    with monitor(models["always"], lambda step, rows: None, every=1) as always:
        each: dict[str, list[float]] = {"plain": [], "always": []}
        for name in ("plain", "always") * 8:
            cpu = time.process_time()
            step[name]()
            each[name].append(time.process_time() - cpu)
    with tempfile.TemporaryDirectory() as folder, monitor(models["watched"], Path(folder) / "norms.csv") as watching:
        times: dict[str, list[float]] = {"plain": [], "watched": []}
        wall = dict.fromkeys(times, 0.0)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for name in times:
                before, cpu = time.perf_counter(), time.process_time()
                step[name]()
                times[name].append(time.process_time() - cpu)
                wall[name] += time.perf_counter() - before
                # The plain steps are not part of the watched training.
                watching._start += time.perf_counter() - before if name == "plain" else 0.0
            rows += [watching.step] if watching._recorder is not None else []
    plain, watched = statistics.median(times["plain"]), statistics.median(times["watched"])
    return {
        "step_ms": 1e3 * plain,
        "steps": watching.step,
        "watched_steps": len(rows),
        "overhead": sum(times["watched"]) / sum(times["plain"]) - 1,
        "overhead_after_first": sum(times["watched"][2:]) / sum(times["plain"][2:]) - 1,
        "counted_overhead": watching.cost / wall["watched"],
        "unwatched_step_overhead": watched / plain - 1,
        "watching_ms": 1e3 * (statistics.median(each["always"]) - statistics.median(each["plain"])),
        "watching_counted_ms": 1e3 * always.cost / always.step,
    }


def _build_step(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], None]:
    x, y = torch.randn(shape), torch.randint(10, shape[:1])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run(options: Overhead) -> dict[str, Any]:
    """Measure all, print and write."""
    results: dict[str, Any] = {"machine": describe_machine(), "seconds": options.seconds, "cases": {}}
    for name, (make, shape) in CASES.items():
        results["cases"][name] = case = measure(make, shape, options.seconds)
        print(
            f"{name}: step {case['step_ms']:.1f} ms, watching one {case['watching_ms']:.1f} ms more "
            f"({case['watching_counted_ms']:.1f} counted); {case['watched_steps']} of {case['steps']} steps watched, "
            f"overhead {case['overhead']:+.2%}, after the first {case['overhead_after_first']:+.2%} "
            f"({case['counted_overhead']:.2%} counted), of a step that is not watched "
            f"{case['unwatched_step_overhead']:+.2%}",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"Results: {options.out}")
    return results


if __name__ == "__main__":
    import tyro

    run(tyro.cli(Overhead))
