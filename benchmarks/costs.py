"""The README's table of costs: training steps measured on a CPU and predicted for a GPU."""

from __future__ import annotations

from typing import Any

CARD = "A100 80GB"
# Rows of ResNet-50: their names in the table, in the measurements, and in the predictions if these exist.
_NETS = {
    "IterNorm, first norm": ("IterNorm L1", None),
    "IterNorm, all 53 norms": ("IterNorm full", "IterNorm"),
    "SW, 7 norms": ("SW^a 7 layers", None),
    "GW, 17 norms": ("GW S1-B2", "GW S1-B2"),
    "GW, all 53 norms": ("GW full", "GW"),
}
_SHAPE = [64, 64, 32, 32]
_LAYERS = ("IterNorm", "DBN", "SW", "GW")


def table(full: dict[str, Any], launches: dict[str, Any]) -> str:
    """Return the table of times as multiples of BatchNorm's, for ResNet-50 and for one layer."""
    (net,) = [entry for entry in full["models"] if entry["name"] == "ResNet-50"]
    (layer,) = [entry for entry in full["layers"] if entry["shape"] == _SHAPE]
    machine = full["machine"]
    lines = [
        f"| training step, times BatchNorm's | CPU, measured | {CARD}, predicted: torch | with our Triton kernels |",
        "| --- | ---: | ---: | ---: |",
    ]
    for words, (measured, predicted) in _NETS.items():
        cpu = 1 + net["models"][measured]["step_percent"] / 100
        lines.append(_format_line(f"ResNet-50, {words}", cpu, *_net_multiples(launches, predicted)))
    for name in _LAYERS:
        cpu = layer["methods"][name]["to_batchnorm"]
        lines.append(
            _format_line(f"one {name} layer, {'×'.join(map(str, _SHAPE))}", cpu, *_layer_multiples(launches, name))
        )
    spread = max(100 * row["iqr"] / row["ms"] for row in net["models"].values())
    lines += [
        "",
        f"CPU: {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}; ResNet-50 at "
        f"{net['resolution']}², batch {net['batch']}, with quartiles up to {spread:.0f} % apart. GPU: from launches, "
        "bytes and FLOPs that were counted.",
    ]
    return "\n".join(lines)


def _net_multiples(launches: dict[str, Any], name: str | None) -> list[float | None]:
    """Return the predicted multiples with torch's and with the Triton kernels, None without a prediction."""
    times = {(row["norm"], row["kernels"]): row["predicted_ms"][CARD] for row in launches["resnet50"]}
    base = times["BatchNorm", "torch"]
    return [None if name is None else times[name, kernels] / base for kernels in ("torch", "triton")]


def _layer_multiples(launches: dict[str, Any], name: str) -> list[float | None]:
    """Return the predicted multiples of a layer, None without a prediction for its solver."""
    rows = launches["layers"][name]
    times = {kind: rows[kind].get("predicted_ms", {}).get(CARD) for kind in ("norm", "torch", "triton")}
    return [times[kind] and times[kind] / times["norm"] for kind in ("torch", "triton")]


def _format_line(words: str, *times: float | None) -> str:
    return f"| {words} | {' | '.join('–' if time is None else f'{time:.2f}×' for time in times)} |"
