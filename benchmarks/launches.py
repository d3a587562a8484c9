"""Count the launches, passes over x and FLOPs of training steps on a GPU, and predict their times.

The host's time is measured, on the machine that runs this; nothing else is.

``python -m benchmarks.launches`` prints the tables. With ``--write``, it also writes benchmarks/results/launches.json
and launches.md, the tables of docs/gpu.md and the README's predictions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import collectives, pages, papers, resnet
from benchmarks.launch_tables import markdown
from benchmarks.roofline.cards import CARDS
from benchmarks.roofline.host import measure_host, measure_without_kernels
from benchmarks.roofline.prediction import gpu_seconds, predict_seconds
from benchmarks.roofline.work import Work, count_passes, layer_work
from whitenorm.cli.gpu.cases import CASES, Case
from whitenorm.cli.gpu.use_kernels import has_triton

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "launches.json"
PAGE = ROOT.parent / "docs" / "gpu.md"

# The papers' formulations with the same solver, groups and steps.
PAPERS: dict[str, Callable[[], nn.Module]] = {
    "IterNorm": lambda: papers.IterNorm(64),
    "DBN": lambda: papers.DBN(64),
    "IW": lambda: papers.IW(64, 16),
    "GW": lambda: papers.GW(32, 64),
    "SW": lambda: papers.SW(64),
    "LayerWhitening": lambda: papers.GW(24, 768),
}
# Its decomposition is one operation of torch but many launches on a GPU, so that no time is predicted.
_UNPREDICTABLE = ("DBN",)
# The GPU of the ranks.
_CARD_OF_RANKS = "A100 80GB"


def collect() -> dict[str, Any]:
    """Count everything, measure the time of the host, and return the results; nothing is timed on a GPU."""
    return {
        "torch": torch.__version__,
        "host": host_rows(),
        "layers": {name: layer_rows(name, case) for name, case in CASES.items()},
        "resnet50": resnet_rows(),
        "ranks": rank_rows(),
    }


def host_rows() -> dict[str, Any]:
    """Measure the host's time per training step of each layer, on inputs so small that torch computes little."""
    if not has_triton():
        return {}
    rows: dict[str, Any] = {}
    for name, case in CASES.items():
        if name in _UNPREDICTABLE:
            continue
        seconds, launches = measure_host(case.build_layer(), (8, *case.shape[1:]))
        rows[name] = {"launches": launches, "ms": seconds * 1e3}
    rows["BatchNorm"] = {"launches": 0, "ms": measure_without_kernels(nn.BatchNorm2d(64), (2, 64, 2, 2)) * 1e3}
    return rows


def layer_rows(name: str, case: Case) -> dict[str, Any]:
    """Count a layer with each backend, the norm that it replaces, and the papers' formulation."""
    works = {"norm": layer_work(case.build_norm(), case.shape)}
    for kernels in _kernels():
        works[kernels] = layer_work(case.build_layer(), case.shape, kernels)
    works["paper"] = layer_work(PAPERS[name](), case.shape)
    return {
        key: _row(work, case.shape, name not in _UNPREDICTABLE, int(key == "triton")) for key, work in works.items()
    }


def _row(work: Work, shape: tuple[int, ...], predictable: bool, triton_layers: int) -> dict[str, Any]:
    row = {
        "forward": len(work.forward),
        "backward": len(work.backward),
        "triton": work.triton_launches,
        "passes": round(count_passes(work, shape), 1),
        "gflops": round(work.flops / 1e9, 2),
    }
    if predictable:
        row["gpu_ms"] = {key: gpu_seconds(work.operations, card) * 1e3 for key, card in CARDS.items()}
        row["predicted_ms"] = {
            key: predict_seconds(work.operations, card, triton_layers) * 1e3 for key, card in CARDS.items()
        }
    return row


def resnet_rows() -> list[dict[str, Any]]:
    """Count a ResNet-50 step with each norm everywhere and each backend."""
    configurations = [("BatchNorm", "torch"), *[(name, kernels) for name in resnet.WHITENING for kernels in _kernels()]]
    rows = []
    for name, kernels in configurations:
        layer, where = resnet.NAMES[name]
        operations = resnet.step_operations(layer, kernels, where)
        predicted = {key: resnet.step_seconds(layer, kernels, card, where) * 1e3 for key, card in CARDS.items()}
        rows.append({"norm": name, "kernels": kernels, "launches": len(operations), "predicted_ms": predicted})
    return rows


def rank_rows() -> dict[str, Any]:
    """Count ResNet-50 steps over ranks with the fastest available kernels."""
    card, kernels = CARDS[_CARD_OF_RANKS], _kernels()[-1]
    gradient = 4 * resnet.count_parameters()
    rows = {
        "IterNorm, synchronised": collectives.resnet_row("iternorm", card, kernels, synchronise=True),
        "IterNorm, local": collectives.resnet_row("iternorm", card, kernels, synchronise=False),
        "GW": collectives.resnet_row("gw", card, kernels, synchronise=False),
    }
    all_reduce_ms = {str(ranks): collectives.all_reduce_seconds(gradient, ranks) * 1e3 for ranks in collectives.RANKS}
    return {
        "card": card.name,
        "kernels": kernels,
        "rows": rows,
        "gradient": {"megabytes": gradient / 1e6, "all_reduce_ms": all_reduce_ms},
    }


def _kernels() -> list[str]:
    return ["torch", "triton"] if has_triton() else ["torch"]


def write(results: dict[str, Any]) -> None:
    """Write the results, and everything that is generated from them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(results) + "\n")
    pages.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the results and the tables of docs/gpu.md")
    options = parser.parse_args()
    results = collect()
    print(markdown(results))
    if options.write:
        write(results)


if __name__ == "__main__":
    main()
