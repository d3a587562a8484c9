"""Time every layer on shapes between those of the suite, beside the papers' formulation and PyTorch's operations.

A row has the time of each alternative as a multiple of the layer's: below 1, the alternative is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import whitenorm
from benchmarks import papers
from benchmarks.layers import with_torch_kernels
from benchmarks.native import Native
from whitenorm.diagnostics import kernels_used
from whitenorm_lab.costs import build_layer_step
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

SIDES = (4, 7, 10, 14, 20)
SAMPLES = (4, 32, 256)
FEATURES = {"IterNorm": (16, 32, 64, 128, 256, 512), "IW": (16, 64), "GW": (16, 32, 64)}
CHANNELS = 256
# Most elements of an input; larger ones take long and resemble those of the suite.
_MOST = 7_000_000
# A layer counts as slower below this; smaller differences are noise in such short runs.
MARGIN = 0.95


def cases(quick: bool) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield method, features whitened together, and shape."""
    for name, sizes in FEATURES.items():
        for features in sizes[:1] if quick else sizes:
            for samples in SAMPLES[:1] if quick else SAMPLES:
                for side in SIDES[:1] if quick else SIDES:
                    shape = (samples, max(CHANNELS, features), side, side)
                    if math.prod(shape) <= _MOST:
                        yield name, features, shape


def build_contenders(name: str, features: int, channels: int) -> dict[str, nn.Module]:
    """Return the layer under its name, and its alternatives."""
    if name == "IterNorm":
        return {
            name: whitenorm.IterNorm(channels, features),
            "paper": papers.IterNorm(channels, features),
            "native": Native(channels, features, "newton"),
        }
    if name == "IW":
        return {name: whitenorm.InstanceWhitening(channels, features), "paper": papers.IW(channels, features)}
    return {name: whitenorm.GroupWhitening(features, channels), "paper": papers.GW(features, channels)}


def measure(name: str, features: int, shape: tuple[int, ...], rounds: int, budget: float) -> dict[str, Any]:
    """Return one row: times in milliseconds, and those of the alternatives as multiples of the layer's."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    modules = build_contenders(name, features, shape[1])
    runs = {key: build_layer_step(module, x, grad) for key, module in modules.items()}
    runs["torch"] = with_torch_kernels(runs[name])
    times = time_interleaved(runs, rounds, budget)
    return {
        "method": name,
        "features": features,
        "shape": list(shape),
        "kernels": " and ".join(kernels_used(runs[name])),
        "times": {key: summarise(values)._asdict() for key, values in times.items()},
        "to_own": {key: median_ratio(values, times[name]) for key, values in times.items() if key != name},
    }


def find_fastest(row: dict[str, Any]) -> str:
    """Return the fastest of the papers' formulation and PyTorch's operations."""
    return min((key for key in row["to_own"] if key != "torch"), key=row["to_own"].__getitem__)


def behind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in which an alternative is faster."""
    return [row for row in rows if row["to_own"][find_fastest(row)] < MARGIN]
