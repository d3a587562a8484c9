"""ResNet-50 with the papers' placements: training step, inference and FLOPs, against BatchNorm everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.resnet import MODELS, PLACEMENTS, resnet50
from benchmarks.timing import interleaved, machine, ratio, summarise

QUICK = ["GW S1-B2", "SW^a 7 layers", "IterNorm L1"]
# Additional time of a training step over BatchNorm, in percent: GW, table A2; SW, table 1 (CPU).
PAPERS = {
    "GW S1": 4.3,
    "GW S1-B1": 23.6,
    "GW S1-B2": 22.7,
    "GW S1-B3": 51.3,
    "GW S1-B12": 40.6,
    "BW 7 layers": 10.1,
    "SW^a 7 layers": 11.4,
    "SW^b 7 layers": 13.5,
}


def measure(
    names: list[str], resolution: int, batch: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Each model in turn beside BatchNorm's, so that both are timed in the same rounds."""
    rows = {}
    base = resnet50()
    for name in names:
        progress(name)
        norm, place = MODELS[name]
        model = resnet50(norm, PLACEMENTS[place])
        pair = {"BatchNorm": base, name: model}
        steps = interleaved({key: _step(net, resolution, batch) for key, net in pair.items()}, rounds, budget=600)
        inference = interleaved(
            {key: _inference(net, resolution, batch) for key, net in pair.items()}, rounds, budget=600
        )
        rows[name] = {
            **summarise(steps[name])._asdict(),
            "step_percent": 100 * (ratio(steps[name], steps["BatchNorm"]) - 1),
            "step_percent_paper": PAPERS.get(name),
            "inference_percent": 100 * (ratio(inference[name], inference["BatchNorm"]) - 1),
            "gflops": gflops(model, resolution),
            "batchnorm_ms": summarise(steps["BatchNorm"]).ms,
        }
    return {
        "machine": machine(),
        "resolution": resolution,
        "batch": batch,
        "gflops": gflops(base, resolution),
        "models": rows,
    }


def _step(model: nn.Module, resolution: int, batch: int) -> Callable[[], None]:
    x, labels = torch.randn(batch, 3, resolution, resolution), torch.randint(1000, (batch,))

    def run() -> None:
        model.train()
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward()

    return run


def _inference(model: nn.Module, resolution: int, batch: int) -> Callable[[], None]:
    x = torch.randn(batch, 3, resolution, resolution)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return run


def gflops(model: nn.Module, resolution: int) -> float:
    """Multiplications and additions of inference on one image, a pair counted as one, as the SW paper does."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.eval()(torch.randn(1, 3, resolution, resolution))
    return counter.get_total_flops() / 2e9
