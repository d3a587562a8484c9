"""Table and picture of the features tutorial: correlations and spectra after BatchNorm and after IterNorm."""

from __future__ import annotations

from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from benchmarks.tutorials.page import Tutorial

_ROWS = {
    "κ after the last norm, first step": ("condition_at_first", "{:.1f}"),
    "κ after the last norm, first step of the last epoch": ("condition_at_last", "{:.1f}"),
    "after training: κ before the last norm": ("condition_before", "{:.1f}"),
    "after training: κ after the last norm": ("condition_after", "{:.1f}"),
    "after training: κ after the last norm, at inference": ("condition_at_inference", "{:.1f}"),
    "after training: mean absolute correlation before the last norm": ("correlation_before", "{:.3f}"),
    "after training: mean absolute correlation after the last norm": ("correlation_after", "{:.3f}"),
    "ms per training step": ("milliseconds", "{:.1f}"),
}
_LABELS = {"BN": "after BatchNorm", "IterNorm": "after IterNorm"}
_COLOURS = {"BN": "tab:orange", "IterNorm": "tab:blue"}


def table(results: dict[str, Any], sizes: tuple[int, ...]) -> str:
    """Return the table of means over the seeds and all accuracies."""
    epochs, seeds = sizes
    seen = results["seen"]["numbers"]
    rows = [
        _format_row(name, [form.format(mean(run[key] for run in seen[norm])) for norm in seen])
        for name, (key, form) in _ROWS.items()
    ]
    accuracies = [", ".join(f"{100 * run['accuracy']:.1f}" for run in seen[norm]) for norm in seen]
    return "\n".join(
        [
            f"![Correlations and spectra after BatchNorm and after IterNorm]({TUTORIAL.picture.name})",
            "",
            f"Features of the last norm on the test images after {epochs} epochs. The picture shows the first of "
            f"{seeds} seeds, the table the means:",
            "",
            "| | " + " | ".join(seen) + " |",
            "| --- |" + " ---: |" * len(seen),
            *rows,
            _format_row("test accuracy in %, each seed", accuracies),
            "",
            f"The whole run took {results['seconds']:.0f} seconds on one core.",
        ]
    )


def _format_row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def draw(results: dict[str, Any]) -> Figure:
    """Draw two correlation matrices and the spectra in one row."""
    first = results["seen"]["first"]
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.1), dpi=150, layout="constrained", width_ratios=[1, 1, 1.2])
    images = [
        _draw_matrix(panel, _LABELS[norm], run) for panel, (norm, run) in zip(axes[:2], first.items(), strict=True)
    ]
    bar = figure.colorbar(images[-1], ax=axes[:2], shrink=0.9, ticks=[-1, 0, 1], pad=0.02)
    bar.set_label("correlation", labelpad=-6)
    for norm, run in first.items():
        _draw_spectrum(axes[2], norm, run["spectrum"], results["seen"]["numbers"][norm][0]["condition_after"])
    axes[2].axhline(1, color="grey", linewidth=1, linestyle=":")
    axes[2].text(32, 1.06, "white", color="grey", fontsize=9, ha="right", va="bottom")
    axes[2].set_title("Eigenvalues over their mean", fontsize=11)
    axes[2].set(xlabel="direction, from the largest", ylim=(0.02, 12))
    axes[2].grid(alpha=0.3)
    axes[2].legend(fontsize=9, loc="lower left")
    return figure


def _draw_matrix(axes: Axes, label: str, run: dict[str, Any]) -> AxesImage:
    size = len(run["correlations"])
    axes.set(xticks=[0, size - 1], xticklabels=["1", str(size)], yticks=[0, size - 1], yticklabels=["1", str(size)])
    axes.set(xlabel="channel", ylabel="channel")
    axes.xaxis.labelpad = axes.yaxis.labelpad = -8
    axes.set_title(f"Features {label}", fontsize=11)
    return axes.imshow(run["correlations"], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")


def _draw_spectrum(axes: Axes, norm: str, values: list[float], condition: float) -> None:
    scaled = [value / mean(values) for value in values]
    label = f"{_LABELS[norm]}, κ = {condition:.0f}"
    axes.semilogy(range(1, len(values) + 1), scaled, color=_COLOURS[norm], linewidth=2, label=label)


TUTORIAL = Tutorial("features", ("epochs", "seeds"), "seen", table, draw)
