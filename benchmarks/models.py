"""Whole models with the papers' placements: training step, inference and FLOPs, against BatchNorm everywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

from whitenorm.diagnostics import kernels_used
from whitenorm_lab import costs
from whitenorm_lab.costs import Choice, count_gflops
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

# One placement per method, and all norms; the lab's experiments gw-cost, sw-cost and dbn-cost time the others.
NAMES = ["IterNorm L1", "SW^a 7 layers", "GW S1-B2", "IterNorm full", "GW S1", "GW full"]
QUICK = NAMES[:3]
# Models that are timed in the same rounds as BatchNorm; with more, the times would be too far apart.
TOGETHER = 3


class Family(NamedTuple):
    """A network, the norms it is timed with, and the size of its input."""

    name: str
    net: str
    models: dict[str, Choice]
    resolution: int
    batch: int
    classes: int


def resnet50(names: list[str], resolution: int, batch: int) -> Family:
    return Family("ResNet-50", "resnet50", {name: costs.RESNET50[name] for name in names}, resolution, batch, 1000)


def measure(family: Family, rounds: int) -> dict[str, Any]:
    """Time a few models at a time in the same rounds as BatchNorm's."""
    rows = {}
    base = costs.build_net(family.net, family.classes)
    names = list(family.models)
    size = (family.batch, family.resolution)
    for start in range(0, len(names), TOGETHER):
        group = names[start : start + TOGETHER]
        built = {name: costs.build_net(family.net, family.classes, family.models[name]) for name in group}
        nets = {"BatchNorm": base, **built}
        runs = {key: costs.build_training_step(net, *size, family.classes) for key, net in nets.items()}
        steps = time_interleaved(runs, rounds, budget=600)
        inference = time_interleaved(
            {key: costs.build_inference(net, *size) for key, net in nets.items()}, rounds, budget=600
        )
        for name in group:
            rows[name] = {
                "solver": costs.list_solvers(nets[name]),
                "kernels": " and ".join(kernels_used(runs[name])),
                **summarise(steps[name])._asdict(),
                "step_percent": 100 * (median_ratio(steps[name], steps["BatchNorm"]) - 1),
                "inference_percent": 100 * (median_ratio(inference[name], inference["BatchNorm"]) - 1),
                "gflops": count_gflops(nets[name], family.resolution),
                "batchnorm_ms": summarise(steps["BatchNorm"]).ms,
            }
    return {
        "machine": describe_machine(),
        "name": family.name,
        "resolution": family.resolution,
        "batch": family.batch,
        "gflops": count_gflops(base, family.resolution),
        "models": rows,
    }
