"""Shapes between those of the suite: every layer against the fastest of what else there is.

That is the papers' formulation, PyTorch's own operations composed, and this package's other layout. A row has the
fastest of them in units of the layer's own time: below 1, it is ahead.
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
from whitenorm.ops import layout
from whitenorm_lab.costs import build_layer_step
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

SIDES = (4, 7, 10, 14, 20)
SAMPLES = (4, 32, 256)
FEATURES = {"IterNorm": (16, 32, 64, 128, 256, 512), "IW": (16, 64), "GW": (16, 32, 64)}
CHANNELS = 256
# Elements of an input: more take long, and are like those of the suite.
_MOST = 7_000_000
# What is called behind: less is within the noise of such short runs.
MARGIN = 0.95


def cases(quick: bool) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Method, features whitened together, and shape."""
    for name, sizes in FEATURES.items():
        for features in sizes[:1] if quick else sizes:
            for samples in SAMPLES[:1] if quick else SAMPLES:
                for side in SIDES[:1] if quick else SIDES:
                    shape = (samples, max(CHANNELS, features), side, side)
                    if math.prod(shape) <= _MOST:
                        yield name, features, shape


def contenders(name: str, features: int, channels: int) -> dict[str, nn.Module]:
    """The layer, under its own name, and its rivals."""
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
    """One row: times in milliseconds, and the fastest rival in units of the layer's."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    modules = contenders(name, features, shape[1])
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
    """Run a step with samples copied together where they are not by default, and the reverse."""

    def choose_other(*args: Any, **kwargs: Any) -> layout.Layout:
        usual = layout.channel_groups(*args, **kwargs)
        return usual._replace(copied=not usual.copied)

    with mock.patch.object(whitenorm.functional, "channel_groups", choose_other):
        step()


def behind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in which a rival is ahead."""
    return [row for row in rows if row["fastest_to_own"] < MARGIN]
