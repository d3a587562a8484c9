"""Write the tables of docs/benchmarks.md from measured results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

from benchmarks import sweep
from whitenorm_lab import published

_UNKNOWN = "–"
_LAYER_WHITENING = "LayerWhitening"


class Target(NamedTuple):
    """A target for the layers, the measured value, and whether it is met, None if it was not measured."""

    what: str
    required: str
    measured: str
    is_met: bool | None


class Loss(NamedTuple):
    """A layer on a shape on which an alternative is faster."""

    layer: str
    shape: list[int]
    ms: float
    alternative: str
    alternative_ms: float


def rows(results: dict[str, Any], *names: str) -> list[tuple[list[int], str, dict[str, Any]]]:
    """Return shape, method and row of all measured layers, or of those with the given names."""
    return [
        (entry["shape"], name, row)
        for entry in results["layers"]
        for name, row in entry["methods"].items()
        if not names or name in names
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(math.log(value) for value in values) / len(values))


def list_losses(results: dict[str, Any]) -> list[Loss]:
    """Return the shapes of the suite and the sweep on which the papers' formulation or native operations are faster."""
    losses = []
    for shape, name, row in rows(results):
        own = {"paper": row["to_paper"], "native": row["to_native"] or 0}
        fastest = max(own, key=own.__getitem__)
        if own[fastest] * sweep.MARGIN > 1:
            losses.append(Loss(name, shape, row["ms"], fastest, row["ms"] / own[fastest]))
    for row in sweep.behind(results["sweep"]):
        fastest = sweep.find_fastest(row)
        ms = {key: times["ms"] for key, times in row["times"].items()}
        layer = f"{row['method']}, K = {row['features']}"
        losses.append(Loss(layer, row["shape"], ms[row["method"]], fastest, ms[fastest]))
    return losses


def list_targets(results: dict[str, Any]) -> list[Target]:
    """Judge all targets by the worst of the values that each is for."""
    return [*_judge_alternatives(results), *_judge_norms(results), *_judge_tokens(results), *_judge_others(results)]


def _judge_alternatives(results: dict[str, Any]) -> Iterator[Target]:
    losses = list_losses(results)
    count = len(rows(results)) + len(results["sweep"])
    yield Target(
        f"layers and shapes on which the papers' formulation or native operations are more than "
        f"{100 * (1 - sweep.MARGIN):.0f} % faster",
        f"≤ 5 of {count}",
        str(len(losses)),
        len(losses) <= 5,
    )
    faster = [1 / row["to_paper"] for _, _, row in rows(results)]
    yield _judge(
        "all layers, times faster than the papers' formulation (geometric mean)", "≥", 2.8, [geometric_mean(faster)]
    )
    for name, least in (("IW", 3.0), ("GW", 3.0), ("SW", 3.0), (_LAYER_WHITENING, 3.0)):
        faster = [1 / row["to_paper"] for _, _, row in rows(results, name)]
        what = f"{name}, times faster than its paper's formulation (geometric mean)"
        yield _judge(what, "≥", least, [geometric_mean(faster)] if faster else [])
    faster = [1 / row["to_paper"] for _, _, row in rows(results, "DBN")]
    yield _judge("DBN, times faster than its paper's formulation (worst)", "≥", 2.0, [min(faster)])


def _judge_norms(results: dict[str, Any]) -> Iterator[Target]:
    for name, shape, limit in (
        ("IterNorm", [256, 128], 3.5),
        ("IterNorm", [4, 16, 4, 4], 1.5),
        ("IW", [32, 256, 14, 14], 2.0),
        ("GW", [32, 64, 56, 56], 3.5),
    ):
        found = [row for size, _, row in rows(results, name) if size == shape]
        norm = found[0]["norm"] if found else "its norm"
        what = f"{name} {_join(shape)}, relative to {norm}"
        yield _judge(what, "≤", limit, [row["to_norm"] for row in found])
    images = [row["inference_to_norm"] for shape, _, row in rows(results, "GW") if len(shape) == 4]
    yield _judge("GW's inference on images, relative to GroupNorm", "≤", 4.0, images)


def _judge_tokens(results: dict[str, Any]) -> Iterator[Target]:
    for net, limit in (("ViT-tiny", 1.35), ("translation, 6 layers", 1.25)):
        steps = [entry["rows"][_LAYER_WHITENING]["step"] for entry in results["tokens"] if entry["name"] == net]
        yield _judge(f"{net}, training step with {_LAYER_WHITENING}, relative to LayerNorm", "≤", limit, steps)


def _judge_others(results: dict[str, Any]) -> Iterator[Target]:
    for key, what in (
        ("saved", "memory saved for backward"),
        ("peak", "peak memory that PyTorch allocates in a training step"),
    ):
        shares = [row[key] / row[f"{key}_torch"] for _, _, row in rows(results) if row.get(f"{key}_torch")]
        yield _judge(f"{what}, relative to torch's kernels", "≤", 1.0, shares)
    last = [row.get("channels_last_to_contiguous") for _, _, row in rows(results)]
    yield _judge("channels-last, relative to contiguous", "≤", 1.15, last)
    convolution = [
        row["to_convolution"]
        for shape, _, row in rows(results, "IterNorm")
        if shape in ([64, 64, 32, 32], [64, 128, 32, 32])
    ]
    yield _judge("IterNorm, d = 64 and 128, relative to a 3×3 convolution", "≤", 0.35, convolution)
    product = [row.get("inference_to_product") for _, _, row in rows(results)]
    yield _judge("inference of IterNorm and DBN, relative to a grouped 1×1 product", "≤", 2.0, product)
    added = [row["folded_extra_flops"] for _, _, row in rows(results) if "folded_extra_flops" in row]
    yield Target("FLOPs added to a convolution by folding", "0", str(max(added, default=_UNKNOWN)), not any(added))
    for entry in results["models"]:
        for name, limit in (("GW S1-B2", 10), ("SW^a 7 layers", 6), ("IterNorm L1", 3)):
            if name in entry["models"]:
                percent = entry["models"][name]["step_percent"]
                what = f"{entry['name']} step at {entry['resolution']}², {name}"
                yield Target(what, f"≤ +{limit} %", f"{percent:+.1f} %", percent <= limit)


def _judge(what: str, sign: str, limit: float, values: Sequence[float | None]) -> Target:
    """Judge the smallest and the largest of the values that were measured."""
    known = [value for value in values if value is not None]
    if not known:
        return Target(what, f"{sign} {limit}×", _UNKNOWN, None)
    measured = " … ".join(f"{value:.2f}×" for value in sorted({min(known), max(known)}))
    return Target(what, f"{sign} {limit}×", measured, max(known) <= limit if sign == "≤" else min(known) >= limit)


def cost_table(results: dict[str, Any]) -> str:
    """Tabulate what a layer costs and what it is compared with, below a legend of the columns."""
    machine = results["machine"]
    lines = [
        "| shape | layer | ms (spread) | × norm | × paper | × floor |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {_join(shape)} | {name} | {row['ms']:.2f} ({row['iqr']:.2f}) | {_format_ratio(row['to_norm'])} | "
            f"{_format_ratio(row['to_paper'])} | {_format_ratio(row['to_floor'])} |"
            for shape, name, row in rows(results)
        ),
        "",
        "- **shape**: of the float32 input, N×C×H×W, or N×C for vectors and tokens.",
        "- **layer**: IterNorm with groups of 64 channels, DBN, SW and IW of 16, GW with 32 groups, LayerWhitening "
        "with the divisor nearest √C; at most all channels.",
        "- **ms (spread)**: milliseconds of a training step (forward and backward), the median of interleaved rounds, "
        "and the distance between its quartiles.",
        "- **× norm**: as a multiple of the time of the norm that the layer replaces: BatchNorm for IterNorm, DBN and "
        "SW, InstanceNorm for IW, GroupNorm for GW, LayerNorm for LayerWhitening.",
        "- **× paper**: as a multiple of the time of the paper's own formulation; below 1 the layer is faster.",
        "- **× floor**: as a multiple of the least time for the memory traffic and the products that are needed, at "
        "rates measured on this machine.",
        f"- {_UNKNOWN}: not measured.",
        "",
        f"Measured on {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, commit "
        f"`{machine['commit'][:10]}`, {_describe_kernels(results)}. Best rate of matrix products: "
        f"{results['sgemm_gflops']:.0f} GFLOP/s.",
    ]
    return "\n".join(lines)


def _describe_kernels(results: dict[str, Any]) -> str:
    kernels = dict.fromkeys(row["kernels"] for _, _, row in rows(results))
    return f"kernels: {', '.join(kernels)}"


def target_table(results: dict[str, Any]) -> str:
    """Tabulate the targets, and the shapes on which an alternative is faster."""
    words = {True: "met", False: "**missed**", None: "not measured"}
    targets, losses = list_targets(results), list_losses(results)
    counts = [f"{sum(target.is_met is state for target in targets)} {word.strip('*')}" for state, word in words.items()]
    others = [row["to_own"][sweep.find_fastest(row)] for row in results["sweep"]]
    lines = [
        f"{len(targets)} targets: {', '.join(counts)}. A range is that of all layers and shapes; its worse end counts.",
        "",
        "| target | required | measured | result |",
        "| --- | ---: | ---: | --- |",
        *(f"| {one.what} | {one.required} | {one.measured} | {words[one.is_met]} |" for one in targets),
        "",
        f"An alternative is faster on these {len(losses)} of {len(rows(results))} layers of the suite and "
        f"{len(others)} other shapes, where it takes {geometric_mean(others):.2f} times as long as the layer in the "
        "geometric mean:",
        "",
        "| layer | shape | ms | alternative's ms | alternative |",
        "| --- | --- | ---: | ---: | --- |",
        *(
            f"| {one.layer} | {_join(one.shape)} | {one.ms:.2f} | {one.alternative_ms:.2f} | {one.alternative} |"
            for one in losses
        ),
        "",
        "- **ms**: milliseconds of a training step, medians of interleaved rounds.",
        "- **alternative**: *paper*, the paper's formulation; *native*, a composition of PyTorch's operations, for "
        "IterNorm and DBN. The papers' formulations of the others are such compositions.",
    ]
    return "\n".join(lines)


def detail_table(results: dict[str, Any]) -> str:
    """Tabulate everything else about the layers, then whole networks."""
    lines = [
        "| shape | layer | kernels | × torch's kernels | × native | × 3×3 conv | channels-last | inference ms "
        "| inference × norm | saved | peak |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {_join(shape)} | {name} | {row['kernels']} | {_format_ratio(row['to_torch'])} | "
            f"{_format_ratio(row['to_native'])} | {_format_convolution(shape, name, row)} | "
            f"{_format_ratio(row.get('channels_last_to_contiguous'))} | {row['inference_ms']:.2f} | "
            f"{_format_ratio(row['inference_to_norm'])} | {_format_memory(row, 'saved')} | "
            f"{_format_memory(row, 'peak')} |"
            for shape, name, row in rows(results)
        ),
        "",
        "- **shape**, **layer**: as in the first table.",
        "- **kernels**: those that ran; the name of C++ kernels is their binary, with the instruction set.",
        "- **× torch's kernels**: the layer's training step as a multiple of that with `set_kernels(\"torch\")`.",
        "- **× native**: as a multiple of a composition of PyTorch's operations, where the paper's is not one.",
        "- **× 3×3 conv**: as a multiple of a convolution of the same width; in brackets the paper's figure.",
        "- **channels-last**: time of a channels-last input as a multiple of that of a contiguous one.",
        "- **inference ms**, **inference × norm**: a forward pass in eval mode, and as a multiple of the norm's.",
        "- **saved**: memory saved for backward, as a multiple of the input's; in brackets that of torch's kernels, "
        "the paper's formulation and the norm.",
        "- **peak**: the most memory that PyTorch allocates in a training step, in the same units and order; without "
        "the workspace of the C++ kernels, which each call frees.",
    ]
    for entry in results["models"]:
        lines += ["", *model_table(entry)]
    for entry in results["tokens"]:
        lines += ["", *token_table(entry)]
    return "\n".join(lines)


def format_all(results: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    tables = (cost_table, target_table, detail_table, solver_table)
    return "\n\n".join(table(results) for table in tables)


def _join(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _format_ratio(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _format_memory(row: dict[str, Any], key: str) -> str:
    others = ", ".join(_format_ratio(row.get(f"{key}_{which}")) for which in ("torch", "paper", "norm"))
    return f"{row[key]:.2f} ({others})"


def _format_convolution(shape: list[int], name: str, row: dict[str, Any]) -> str:
    if "to_convolution" not in row:
        return _UNKNOWN
    printed = published.TO_CONVOLUTION.get((name, shape[1])) if shape[0] == 64 and shape[2:] == [32, 32] else None
    return f"{row['to_convolution']:.2f}" + ("" if printed is None else f" ({printed:.2f})")


def model_table(entry: dict[str, Any]) -> list[str]:
    """Tabulate the time that norms add to a network with BatchNorm, beside the papers' figures."""
    lines = [
        f"{entry['name']} at {entry['resolution']}², batch {entry['batch']}, commit "
        f"`{entry['machine']['commit'][:10]}`: time added to BatchNorm's (which has {entry['gflops']:.3f} GFLOPs). "
        "In brackets the papers' figures; those after a semicolon are for 713²:",
        "",
        "| norms | solver | kernels | training step | inference | GFLOPs |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for name, row in entry["models"].items():
        printed = [table.get(name) for table in (published.STEP_PERCENT, published.STEP_PERCENT_713)]
        step = _format_percent(
            row["step_percent"], "; ".join(f"{value:+.1f} %" for value in printed if value is not None)
        )
        inference = published.INFERENCE_PERCENT.get(name)
        inferred = _format_percent(row["inference_percent"], "" if inference is None else f"{inference:+.1f} %")
        flops = published.GFLOPS.get(name)
        lines.append(
            f"| {name} | {row['solver']} | {row['kernels']} | {step} | {inferred} | "
            f"{row['gflops']:.3f}{'' if flops is None else f' ({flops:.3f})'} |"
        )
    return lines


def _format_percent(percent: float, printed: str) -> str:
    return f"{percent:+.1f} %" + (f" ({printed})" if printed else "")


def solver_table(results: dict[str, Any]) -> str:
    """Tabulate time and error of the solvers alone."""
    lines = ["| K | matrices | solver | ms | error |", "| ---: | ---: | --- | ---: | ---: |"]
    for entry in results["solvers"]:
        for name, row in entry["solvers"].items():
            lines.append(f"| {entry['size']} | {entry['batch']} | {name} | {row['ms']:.3f} | {row['error']:.1e} |")
    return "\n".join(lines)


def token_table(entry: dict[str, Any]) -> list[str]:
    """Tabulate a transformer's training step and inference, relative to LayerNorm."""
    lines = [
        f"{entry['name']}, input {_join(entry['input'])}: time as a multiple of LayerNorm's.",
        "",
        "| norms | kernels | training step | inference |",
        "| --- | --- | ---: | ---: |",
    ]
    for name, row in entry["rows"].items():
        lines.append(f"| {name} | {row['kernels'] or _UNKNOWN} | {row['step']:.2f} | {row['inference']:.2f} |")
    return lines
