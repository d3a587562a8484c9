"""Whole models with the papers' placements: training step, inference and FLOPs, against BatchNorm everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from benchmarks import resnet, vgg
from benchmarks.timing import interleaved, ratio, summarise
from whitenorm.diagnostics import flops
from whitenorm.lab.machine import machine

QUICK = ["GW S1-B2", "SW^a 7 layers", "IterNorm L1"]
# As many models as are timed in turns with one of BatchNorm: more would be too far from it in time.
TOGETHER = 3


class Family(NamedTuple):
    """A network, with BatchNorm and with other norms, and what it is fed."""

    name: str
    base: Callable[[], nn.Module]
    models: dict[str, Callable[[], nn.Module]]
    resolution: int
    batch: int
    classes: int


def resnet50(names: list[str], resolution: int, batch: int) -> Family:
    def make(name: str) -> Callable[[], nn.Module]:
        norm, place = resnet.MODELS[name]
        return lambda: resnet.resnet50(norm, resnet.PLACEMENTS[place])

    return Family("ResNet-50", resnet.resnet50, {name: make(name) for name in names}, resolution, batch, 1000)


def vgg_a(batch: int) -> Family:
    models = {name: lambda norm=norm: vgg.vgg_a(norm) for name, norm in vgg.MODELS.items()}
    return Family("VGG-A", vgg.vgg_a, models, 32, batch, 10)


def measure(family: Family, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """A few models at a time beside BatchNorm's, all timed in the same rounds."""
    rows = {}
    base = family.base()
    names = list(family.models)
    for start in range(0, len(names), TOGETHER):
        group = names[start : start + TOGETHER]
        progress(group[0])
        nets = {"BatchNorm": base, **{name: family.models[name]() for name in group}}
        steps = interleaved({key: _step(net, family) for key, net in nets.items()}, rounds, budget=600)
        inference = interleaved({key: _inference(net, family) for key, net in nets.items()}, rounds, budget=600)
        for name in group:
            rows[name] = {
                **summarise(steps[name])._asdict(),
                "step_percent": 100 * (ratio(steps[name], steps["BatchNorm"]) - 1),
                "inference_percent": 100 * (ratio(inference[name], inference["BatchNorm"]) - 1),
                "gflops": gflops(nets[name], family.resolution),
                "batchnorm_ms": summarise(steps["BatchNorm"]).ms,
            }
    return {
        "machine": machine(),
        "name": family.name,
        "resolution": family.resolution,
        "batch": family.batch,
        "gflops": gflops(base, family.resolution),
        "models": rows,
    }


def _step(model: nn.Module, family: Family) -> Callable[[], None]:
    x = torch.randn(family.batch, 3, family.resolution, family.resolution)
    labels = torch.randint(family.classes, (family.batch,))

    def run() -> None:
        model.train()
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward()

    return run


def _inference(model: nn.Module, family: Family) -> Callable[[], None]:
    x = torch.randn(family.batch, 3, family.resolution, family.resolution)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return run


def gflops(model: nn.Module, resolution: int) -> float:
    """Multiplications and additions of inference on one image, a pair counted as one, as the SW paper does."""
    return flops(model.eval(), torch.randn(1, 3, resolution, resolution)) / 2e9
