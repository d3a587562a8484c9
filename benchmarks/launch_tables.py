"""Markdown tables of benchmarks/launches.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.collectives import RANKS
from benchmarks.roofline.cards import CARDS
from whitenorm.cli.gpu.cases import CASES

# Column titles by kind of implementation.
_KINDS = {"norm": "the replaced norm", "paper": "the paper's formulation", "torch": "PyTorch", "triton": "Triton"}


def counts(results: dict[str, Any]) -> str:
    """Operations forward + backward of a training step (in brackets: Triton kernels), and bytes in passes over x."""
    lines = _format_head("layer", "input", *_KINDS.values(), "GFLOPs")
    for name, rows in results["layers"].items():
        shape = "×".join(map(str, CASES[name].shape))
        cells = [_format_count(rows.get(kind)) for kind in _KINDS]
        lines.append(_format_line((name, shape, *cells, f"{rows['torch']['gflops']:.2f}")))
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
    lines = _format_head("GPU", "GB/s", "TFLOP/s float32", "TFLOP/s TF32", "source")
    for card in CARDS.values():
        rates = (f"{card.bandwidth / 1e9:,.0f}", f"{card.fp32 / 1e12:.1f}", f"{card.tf32 / 1e12:.1f}")
        lines.append(_format_line((card.name, *rates, card.source)))
    return "\n".join(lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "kernels": counts,
    "cards": cards,
    "layers": layer_times,
    "resnet-50": resnet_times,
    "ranks": rank_times,
}


def markdown(results: dict[str, Any]) -> str:
    """Return all tables as Markdown, each with a caption."""
    parts = [f"Counted on the meta device of torch {results['torch']}; all times are predictions; none was measured."]
    for table in TABLES.values():
        parts += [f"{table.__doc__}", table(results)]
    return "\n\n".join(parts)


def _format_head(*names: str) -> list[str]:
    return [_format_line(names), _format_line("---" for _ in names)]


def _format_line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
