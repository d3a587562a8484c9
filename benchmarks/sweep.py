"""Time every layer on shapes between those of the suite, against the fastest alternative.

The alternatives are the papers' formulation, a composition of PyTorch's operations, and the library's other layout. A
row has the time of the fastest as a multiple of the layer's: below 1, the alternative is faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

import whitenorm
from benchmarks import papers
from benchmarks.native import Native
from whitenorm import functional
from whitenorm.ops.layout import Layout, channel_groups
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
    """Return one row: times in milliseconds, and the fastest alternative as a multiple of the layer's time."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    modules = build_contenders(name, features, shape[1])
    runs = {key: build_layer_step(module, x, grad) for key, module in modules.items()}
    if name == "IterNorm":
        runs["other layout"] = functools.partial(_in_other_layout, build_layer_step(modules[name], x, grad))
    times = time_interleaved(runs, rounds, budget)
    rivals = {key: median_ratio(values, times[name]) for key, values in times.items() if key != name}
    fastest = min(rivals, key=rivals.__getitem__)
    return {
        "method": name,
        "features": features,
        "shape": list(shape),
        "ms": {key: summarise(values).ms for key, values in times.items()},
        "fastest": fastest,
        "fastest_to_own": rivals[fastest],
    }


def _in_other_layout(step: Callable[[], None]) -> None:
    """Run a step with the opposite choice of whether samples are gathered into one run per channel."""

    def choose_other(*args: Any) -> Layout:
        layout = channel_groups(*args)
        return layout._replace(copied=layout.pooled and not layout.rows and not layout.copied)

    with mock.patch.object(functional, "channel_groups", choose_other):
        step()


def behind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in which an alternative is faster."""
    return [row for row in rows if row["fastest_to_own"] < MARGIN]
