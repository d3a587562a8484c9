"""Forward and backward of every layer against native BatchNorm, interleaved in one process: ``make bench``."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import whitenorm

LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm": nn.BatchNorm2d,
    "GroupNorm": lambda channels: nn.GroupNorm(32, channels),
    "conv 3×3": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, bias=False),
    "IterNorm": whitenorm.IterNorm,
    "DBN": whitenorm.DecorrelatedBatchNorm,
    "SW": whitenorm.SwitchableWhitening,
    "IW": lambda channels: whitenorm.InstanceWhitening(channels, 16),
    "GW": lambda channels: whitenorm.GroupWhitening(32, channels),
}
SHAPES = [(64, 64, 32, 32), (64, 128, 32, 32), (32, 256, 14, 14), (32, 512, 7, 7)]


def time_step(layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> float:
    """Seconds of one forward and backward in training."""
    start = time.perf_counter()
    layer(x).backward(grad)
    return time.perf_counter() - start


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of every layer, one after another in each round, after one round to warm up."""
    layers = {name: make(shape[1]) for name, make in LAYERS.items()}
    x = torch.randn(shape, requires_grad=True)
    grad = torch.randn(shape)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in track(range(rounds + 1), description=str(shape), transient=True):
        for name, layer in layers.items():
            times[name].append(time_step(layer, x, grad))
    return {name: values[1:] for name, values in times.items()}


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and interquartile range in ms, and the median of the ratios to BatchNorm in the same round."""
    rows = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        ratios = [value / base for value, base in zip(values, times["BatchNorm"], strict=True)]
        rows[name] = {"ratio": statistics.median(ratios), "ms": 1e3 * middle, "iqr_ms": 1e3 * (high - low)}
    return rows


def commit() -> str:
    """The checked-out commit, or nothing outside of a checkout."""
    result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved repetitions (default: 30)")
    parser.add_argument("--out", type=Path, help="write all times as JSON to this file")
    options = parser.parse_args()
    results = {str(shape): measure(shape, options.rounds) for shape in SHAPES}
    view = Table(title="Forward + backward in training: times BatchNorm's (median ms ± IQR)")
    view.add_column("layer")
    for shape in results:
        view.add_column(shape, justify="right")
    rows = {shape: summary(times) for shape, times in results.items()}
    for name in LAYERS:
        cells = [rows[shape][name] for shape in results]
        view.add_row(name, *(f"{cell['ratio']:.2f}× ({cell['ms']:.1f} ± {cell['iqr_ms']:.1f})" for cell in cells))
    Console().print(view)
    if options.out:
        machine = {"platform": platform.platform(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        content = {"commit": commit(), "machine": machine, "seconds": results, "summary": rows}
        options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
