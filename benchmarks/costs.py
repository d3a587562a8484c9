"""The README's tables of costs: training steps measured on a CPU, and predicted for a GPU."""

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
    """Return tables of measured and of predicted times as multiples of BatchNorm's, for ResNet-50 and one layer."""
    (net,) = [entry for entry in full["models"] if entry["name"] == "ResNet-50"]
    (layer,) = [entry for entry in full["layers"] if entry["shape"] == _SHAPE]
    machine, size = full["machine"], "×".join(map(str, _SHAPE))
    measured = {
        **{f"ResNet-50, {words}": 1 + net["models"][name]["step_percent"] / 100 for words, (name, _) in _NETS.items()},
        **{f"one {name} layer, {size}": layer["methods"][name]["to_batchnorm"] for name in _LAYERS},
    }
    predicted = {
        **{f"ResNet-50, {words}": _net_multiples(launches, name) for words, (_, name) in _NETS.items() if name},
        **{f"one {name} layer, {size}": _layer_multiples(launches, name) for name in _LAYERS},
    }
    spread = max(100 * row["iqr"] / row["ms"] for row in net["models"].values())
    return "\n".join(
        [
            "| training step, times BatchNorm's | CPU, measured |",
            "| --- | ---: |",
            *(_format_line(words, [time]) for words, time in measured.items()),
            "",
            f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, kernels: "
            f"{full['binary']}; ResNet-50 at {net['resolution']}², batch {net['batch']}, with quartiles up to "
            f"{spread:.0f} % apart.",
            "",
            f"| training step, times BatchNorm's | {CARD}, predicted: torch | with our Triton kernels |",
            "| --- | ---: | ---: |",
            *(_format_line(words, times) for words, times in predicted.items() if times),
            "",
            "Predicted from launches, bytes and FLOPs that were counted.",
        ]
    )


def _net_multiples(launches: dict[str, Any], name: str) -> list[float]:
    """Return the predicted multiples with torch's and with the Triton kernels."""
    times = {(row["norm"], row["kernels"]): row["predicted_ms"][CARD] for row in launches["resnet50"]}
    return [times[name, kernels] / times["BatchNorm", "torch"] for kernels in ("torch", "triton")]


def _layer_multiples(launches: dict[str, Any], name: str) -> list[float]:
    """Return the predicted multiples of a layer, empty without a prediction for its solver."""
    rows = launches["layers"][name]
    times = {kind: rows[kind].get("predicted_ms", {}).get(CARD) for kind in ("norm", "torch", "triton")}
    return [times[kind] / times["norm"] for kind in ("torch", "triton")] if all(times.values()) else []


def _format_line(words: str, times: list[float]) -> str:
    return f"| {words} | {' | '.join(f'{time:.2f}×' for time in times)} |"
