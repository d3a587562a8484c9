"""Markdown tables of benchmarks/launches.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.collectives import RANKS
from benchmarks.roofline import cards as rates
from benchmarks.roofline.cards import CARDS
from whitenorm.cli.gpu.cases import CASES

_TARGET_CARD, _TARGET_HOST_MS = "A100 80GB", 0.3
# Column titles by kind of implementation.
_KINDS = {"norm": "the replaced norm", "paper": "the paper's formulation", "torch": "PyTorch", "triton": "Triton"}


def counts(results: dict[str, Any]) -> str:
    """Operations forward + backward of a training step (in brackets: Triton kernels), and bytes in passes over x."""
    lines = _format_head("layer", "input", *_KINDS.values(), "GFLOPs: PyTorch", "Triton")
    for name, rows in results["layers"].items():
        shape = "×".join(map(str, CASES[name].shape))
        cells = [_format_count(rows.get(kind)) for kind in _KINDS]
        gflops = [f"{rows[kind]['gflops']:.2f}" if kind in rows else "–" for kind in ("torch", "triton")]
        lines.append(_format_line((name, shape, *cells, *gflops)))
    return "\n".join(lines)


def _format_count(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    ours = f" ({row['triton']} Triton)" if row["triton"] else ""
    return f"{row['forward']} + {row['backward']}{ours}, {row['passes']} passes"


def layer_times(results: dict[str, Any]) -> str:
    """Predicted milliseconds of a training step of one layer."""
    lines = _format_head("predicted ms", "GPU", *_KINDS.values())
    for name, rows in results["layers"].items():
        if "predicted_ms" in rows["torch"]:
            for card in CARDS:
                times = [f"{rows[kind]['predicted_ms'][card]:.2f}" if kind in rows else "–" for kind in _KINDS]
                lines.append(_format_line((name, card, *times)))
    return "\n".join(lines)


def resnet_times(results: dict[str, Any]) -> str:
    """Predicted milliseconds of a training step of ResNet-50, and the increase over BatchNorm."""
    base = results["resnet50"][0]["predicted_ms"]
    lines = _format_head("predicted ms", "kernels", "launches", *CARDS)
    for row in results["resnet50"]:
        times = row["predicted_ms"]
        cells = [f"{times[card]:.1f} ({100 * (times[card] / base[card] - 1):+.0f} %)" for card in CARDS]
        lines.append(_format_line((row["norm"], row["kernels"], f"{row['launches']:,}", *cells)))
    return "\n".join(lines)


def rank_times(results: dict[str, Any]) -> str:
    """Predicted milliseconds that synchronized statistics add to a step, and the all-reduce of the gradient."""
    gradient = results["ranks"]["gradient"]
    added = [f"added on {number:,} GPUs" for number in RANKS]
    lines = _format_head("predicted", "collectives", "MB per step", "other operations", *added)
    for name, row in results["ranks"]["rows"].items():
        others = f"{row['operations']:,}, {row['operations_ms']:.1f} ms"
        times = [f"{row['added_ms'][str(ranks)]:.1f} ms" for ranks in RANKS]
        step = f"{name} ({row['step_ms']:.1f} ms)"
        lines.append(_format_line((step, row["collectives"], f"{row['megabytes']:.1f}", others, *times)))
    own = [f"{gradient['all_reduce_ms'][str(ranks)]:.1f} ms" for ranks in RANKS]
    lines.append(_format_line(("the gradient, during backward", "several", f"{gradient['megabytes']:.1f}", "–", *own)))
    return "\n".join(lines)


def cards(_: dict[str, Any]) -> str:
    """Assumed GPU specifications."""
    lines = _format_head("GPU", "GB/s", "TFLOP/s float32", "TFLOP/s TF32", "multiprocessors", "cache MB", "source")
    for card in CARDS.values():
        speeds = (f"{card.bandwidth / 1e9:,.0f}", f"{card.fp32 / 1e12:.1f}", f"{card.tf32 / 1e12:.1f}")
        lines.append(_format_line((card.name, *speeds, card.processors, card.cache // 2**20, card.source)))
    return "\n".join(lines)


def assumptions(_: dict[str, Any]) -> str:
    """Assumptions of the predictions, beside the GPU specifications."""
    rows = {
        "a step": "the slower of GPU and host, which launches ahead",
        "a kernel on the GPU": f"the longest of {rates.KERNEL * 1e6:g} µs, its bytes and its products",
        "bytes": f"at {100 * rates.BANDWIDTH_ATTAINED:g} % of the bandwidth, no reuse in the cache",
        "BatchNorm": "eight passes where x, or x and grad, exceed the cache; otherwise five",
        "products of PyTorch": f"at {100 * rates.FP32_ATTAINED:g} % of the float32 rate; convolutions at "
        f"{100 * rates.TF32_ATTAINED:g} % of the TF32 rate",
        "products of Triton kernels": f"{rates.PRODUCTS_OF_TF32} TF32 products each, at "
        f"{100 * rates.TF32_ATTAINED:g} % of the TF32 rate; those of padding and those that several warps repeat count",
        "few programs": "each uses one multiprocessor; the others are idle",
        "host, PyTorch operation": f"{rates.TORCH_LAUNCH * 1e6:g} µs, assumed",
        "host, layer with Triton kernels": f"{rates.TRITON_LAYER * 1e6:g} µs and {rates.TRITON_LAUNCH * 1e6:g} µs per "
        "launch, fitted to the measured times, with 4 µs per launch added for the driver",
    }
    return "\n".join([*_format_head("what", "assumption"), *[_format_line(row) for row in rows.items()]])


def host_times(results: dict[str, Any]) -> str:
    """Measured milliseconds of the host per training step of one layer, on a CPU, with kernels that do nothing."""
    lines = _format_head("layer", "Triton launches", "measured ms")
    for name, row in results["host"].items():
        lines.append(_format_line((name, row["launches"], f"{row['ms']:.2f}")))
    return "\n".join(lines)


def targets(results: dict[str, Any]) -> str:
    """Targets, and what the predictions say of them."""
    nets = {(row["norm"], row["kernels"]): row["predicted_ms"][_TARGET_CARD] for row in results["resnet50"]}
    tokens = results["layers"]["LayerWhitening"]
    fastest = "triton" if "triton" in tokens else "torch"
    base = nets["BatchNorm", "torch"]
    rows = [
        ("ResNet-50 step, IterNorm everywhere, to BatchNorm's", 1.3, nets["IterNorm", fastest] / base),
        ("ResNet-50 step, GW S1-B2, to BatchNorm's", 1.12, nets["GW S1-B2", fastest] / base),
        (
            "LayerWhitening(768), to LayerNorm's time on the GPU",
            3.0,
            tokens[fastest]["gpu_ms"][_TARGET_CARD] / tokens["norm"]["gpu_ms"][_TARGET_CARD],
        ),
    ]
    slowest = max((row["ms"] for name, row in results["host"].items() if name != "BatchNorm"), default=None)
    lines = _format_head(f"on an {_TARGET_CARD}", "target", "predicted", "met")
    for name, target, predicted in rows:
        lines.append(_format_line((name, f"≤ {target}×", f"{predicted:.2f}×", "yes" if predicted <= target else "no")))
    if slowest is not None:
        met = "yes" if slowest <= _TARGET_HOST_MS else "no"
        cells = (
            "host's time per layer and step, slowest layer",
            f"≤ {_TARGET_HOST_MS} ms",
            f"{slowest:.2f} ms, measured",
        )
        lines.append(_format_line((*cells, met)))
    return "\n".join(lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "kernels": counts,
    "cards": cards,
    "assumptions": assumptions,
    "host": host_times,
    "layers": layer_times,
    "resnet-50": resnet_times,
    "ranks": rank_times,
    "targets": targets,
}


def markdown(results: dict[str, Any]) -> str:
    """Return all tables as Markdown, each with a caption."""
    parts = [f"Counted on the meta device of torch {results['torch']}; all times but the host's are predictions."]
    for table in TABLES.values():
        parts += [f"{table.__doc__}", table(results)]
    return "\n\n".join(parts)


def _format_head(*names: str) -> list[str]:
    return [_format_line(names), _format_line("---" for _ in names)]


def _format_line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
