"""Write the text and tables of docs/benchmarks.md from measured results."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

from benchmarks import sweep
from whitenorm_lab import published

# Why alternatives are faster on some shapes, from profiles.
REASON = (
    "These shapes have few samples or small matrices. The backward of a layer makes some hundred calls from Python, "
    "about a millisecond, while autograd traverses the graph that the alternative has saved, at two to ten times the "
    "memory. For many matrices of 16 features, a product runs at a fifth of the best rate, so that 39 products, "
    "including the recomputed iterates, take nearly all of the time."
)


class Bar(NamedTuple):
    """A target for the layers, the measured value, and whether it is reached."""

    what: str
    wanted: str
    measured: str
    reached: bool


def rows(results: dict[str, Any], *names: str) -> list[tuple[list[int], str, dict[str, Any]]]:
    """Return shape, method and row of all measured layers, or of those with the given names."""
    return [
        (entry["shape"], name, row)
        for entry in results["layers"]
        for name, row in entry["methods"].items()
        if not names or name in names
    ]


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(math.log(value) for value in values) / len(values))


def bars(results: dict[str, Any]) -> list[Bar]:
    """Return the targets that these results can judge."""
    judged = []
    faster = [1 / row["to_paper"] for _, _, row in rows(results)]
    mean, worst = geometric_mean(faster), min(faster)
    reached = mean >= 2.7 and worst >= 1
    what = "speed-up over the papers' formulation (mean, worst)"
    judged.append(Bar(what, "≥ 2.7×, ≥ 1×", f"{mean:.2f}×, {worst:.2f}×", reached))
    native = [1 / row["to_native"] for _, _, row in rows(results) if row["to_native"] is not None]
    judged.append(Bar("speed-up over native operations (worst)", "≥ 1×", f"{min(native):.2f}×", min(native) >= 1))
    for names, limit in ((("IterNorm", "DBN"), 1.25), (("GW",), 1.5)):
        floors = [row["to_floor"] for shape, _, row in rows(results, *names) if math.prod(shape[2:]) >= 784]
        if floors:
            judged.append(
                _judge_most(f"{' and '.join(names)}, 784 positions and more, relative to the floor", limit, floors)
            )
    small = [row["to_floor"] for shape, _, row in rows(results) if math.prod(shape[2:]) < 784]
    judged.append(_judge_most("smaller shapes, relative to the floor", 2.0, small))
    papers = ([64, 64, 32, 32], [64, 128, 32, 32])
    convolution = [row["to_convolution"] for shape, _, row in rows(results, "IterNorm") if shape in papers]
    if convolution:
        judged.append(_judge_most("IterNorm relative to a 3×3 convolution, d = 64 and 128", 0.35, convolution))
    for name, least in (("DBN", 2.0), ("SW", 3.0)):
        slowest = min(1 / row["to_paper"] for _, _, row in rows(results, name))
        what = f"{name}, speed-up over its paper's formulation (worst)"
        judged.append(Bar(what, f"≥ {least}×", f"{slowest:.2f}×", slowest >= least))
    last = [row["channels_last_to_contiguous"] for _, _, row in rows(results) if "channels_last_to_contiguous" in row]
    if last:
        judged.append(_judge_most("channels-last relative to contiguous", 1.1, last))
    product = [row["inference_to_product"] for _, _, row in rows(results) if "inference_to_product" in row]
    judged.append(_judge_most("inference relative to a grouped 1×1 product", 2.0, product))
    folded = [row for _, _, row in rows(results) if "folded_to_convolution" in row]
    if folded:
        flops = max(row["folded_extra_flops"] for row in folded)
        times = geometric_mean([row["folded_to_convolution"] for row in folded])
        what = "folded into a convolution: FLOPs added, time relative to the convolution"
        judged.append(Bar(what, "0", f"{flops}, {times:.2f}×", flops == 0))
    for entry in results.get("models", []):
        for name, limit in (("GW S1-B2", 10), ("SW^a 7 layers", 6), ("IterNorm L1", 3)):
            if name in entry["models"]:
                percent = entry["models"][name]["step_percent"]
                what = f"{entry['name']} step at {entry['resolution']}², {name}"
                judged.append(Bar(what, f"≤ +{limit} %", f"{percent:+.1f} %", percent <= limit))
    return judged


def _judge_most(what: str, limit: float, values: list[float]) -> Bar:
    measured = " … ".join(f"{value:.2f}×" for value in sorted({min(values), max(values)}))
    return Bar(what, f"≤ {limit}×", measured, max(values) <= limit)


def reading(results: dict[str, Any]) -> str:
    """Summarize the tables: cost, gain over the papers' formulation, and targets that are not reached."""
    layers = [row["to_batchnorm"] for _, _, row in rows(results)]
    nets = [row["step_percent"] for entry in results.get("models", []) for row in entry["models"].values()]
    in_nets = (
        f" The change for a whole network is {min(nets):+.0f} to {max(nets):+.0f} %, depending on placement and number "
        "of norms."
        if nets
        else ""
    )
    faster = geometric_mean([1 / row["to_paper"] for _, _, row in rows(results)])
    targets = bars(results)
    missed = [f"- {bar.what}: measured {bar.measured}, target {bar.wanted}" for bar in targets if not bar.reached]
    return "\n".join(
        [
            f"A training step of one whitening layer takes {min(layers):.1f} to {max(layers):.1f} times as long as "
            f"BatchNorm's.{in_nets} The papers' own formulations take {faster:.2f} times as long as these layers in "
            f"the geometric mean, and are faster than these layers on {_where_ahead(results)}.",
            "",
            f"Of {len(targets)} targets, {len(missed)} are not reached{':' if missed else '.'}",
            *(["", *missed] if missed else []),
        ]
    )


def _where_ahead(results: dict[str, Any]) -> str:
    ahead = [f"{name} {'×'.join(map(str, shape))}" for shape, name, row in rows(results) if row["to_paper"] > 1]
    return " and ".join(ahead) or "none of these shapes"


def markdown(results: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    machine = results["machine"]
    lines = [
        f"Measured on {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, commit "
        f"`{machine['commit'][:10]}`; best sgemm rate {results['sgemm_gflops']:.0f} GFLOP/s. Times are forward + "
        "backward in training, medians of interleaved rounds. Columns with / are ratios of times; below 1 the layer is "
        "faster. *native* is a composition of PyTorch operations, if the papers' formulation is not one already. "
        "*saved* is the memory saved for backward and *peak* the largest memory allocated in a step, both relative to "
        "the input; in brackets the papers' formulation and BatchNorm. In the column / 3×3 conv, brackets hold the "
        "figure of the paper.",
        "",
        "| shape | method | ms | / BatchNorm | / paper | / native | / floor | / 3×3 conv | inference / BN "
        "| channels-last | saved | peak |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for shape, name, row in rows(results):
        last = row.get("channels_last_to_contiguous")
        lines.append(
            f"| {'×'.join(map(str, shape))} | {name} | {row['ms']:.2f} | {row['to_batchnorm']:.2f} | "
            f"{row['to_paper']:.2f} | {_or_dash(row['to_native'])} | {row['to_floor']:.2f} | "
            f"{_format_convolution(shape, name, row)} | "
            f"{row['inference_to_batchnorm']:.2f} | {_or_dash(last)} | "
            f"{row['saved']:.2f} ({row['saved_paper']:.2f}, {row['saved_batchnorm']:.2f}) | "
            f"{row['peak']:.2f} ({row['peak_paper']:.2f}, {row['peak_batchnorm']:.2f}) |"
        )
    for entry in results.get("models", []):
        lines += ["", *model_table(entry)]
    for entry in results["tokens"]:
        lines += ["", *token_table(entry)]
    lines += ["", *behind(results)]
    lines += ["", "| target | required | measured | reached |", "| --- | --- | --- | --- |"]
    for bar in bars(results):
        lines.append(f"| {bar.what} | {bar.wanted} | {bar.measured} | {'yes' if bar.reached else 'no'} |")
    return "\n".join(lines)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _format_convolution(shape: list[int], name: str, row: dict[str, Any]) -> str:
    if "to_convolution" not in row:
        return "–"
    printed = published.TO_CONVOLUTION.get((name, shape[1])) if shape[0] == 64 and shape[2:] == [32, 32] else None
    return f"{row['to_convolution']:.2f}" + ("" if printed is None else f" ({printed:.2f})")


def model_table(entry: dict[str, Any]) -> list[str]:
    """Tabulate the time that norms add to a network with BatchNorm, beside the papers' figures."""
    lines = [
        f"{entry['name']} at {entry['resolution']}², batch {entry['batch']}, commit "
        f"`{entry['machine']['commit'][:10]}`: time added to BatchNorm's (which has {entry['gflops']:.3f} GFLOPs). "
        "In brackets the papers' figures; those after a semicolon are for 713²:",
        "",
        "| norms | solver | training step | inference | GFLOPs |",
        "| --- | --- | ---: | ---: | ---: |",
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
            f"| {name} | {row['solver']} | {step} | {inferred} | "
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
    size = "×".join(map(str, entry["input"]))
    lines = [
        f"{entry['name']}, input {size}: time relative to LayerNorm.",
        "",
        "| norms | training step | inference |",
        "| --- | ---: | ---: |",
    ]
    for name, row in entry["rows"].items():
        lines.append(f"| {name} | {row['step']:.2f} | {row['inference']:.2f} |")
    return lines


def behind(results: dict[str, Any]) -> list[str]:
    """List the shapes on which an alternative is faster, and why."""
    suite = [
        f"{name} {'×'.join(map(str, shape))} ({which}, {row[key]:.2f})"
        for shape, name, row in rows(results)
        for key, which in (("to_paper", "paper"), ("to_native", "native"))
        if row[key] is not None and row[key] > 1
    ]
    between, slower = results["sweep"], sweep.behind(results["sweep"])
    mean = geometric_mean([row["fastest_to_own"] for row in between])
    percent = f"{100 * (1 - sweep.MARGIN):.0f} %"
    return [
        f"An alternative is faster on these of the above shapes: {', '.join(suite) or 'none'}. Of {len(between)} other "
        "shapes, the fastest alternative (the papers' formulation, PyTorch operations, or this package's other memory "
        f"layout) takes {mean:.2f}× the layers' time in the geometric mean, and is more than {percent} faster on "
        f"{len(slower)}, listed in `benchmarks/results/full.md`. {REASON}",
    ]


def sweep_table(results: dict[str, Any]) -> str:
    """Tabulate the other shapes on which an alternative is faster."""
    lines = ["| method | K | shape | ms | alternative's ms | alternative |", "| --- | ---: | --- | ---: | ---: | --- |"]
    for row in sweep.behind(results["sweep"]):
        ours, other = row["ms"][row["method"]], row["ms"][row["fastest"]]
        shape = "×".join(map(str, row["shape"]))
        lines.append(f"| {row['method']} | {row['features']} | {shape} | {ours:.2f} | {other:.2f} | {row['fastest']} |")
    return "\n".join(lines)
