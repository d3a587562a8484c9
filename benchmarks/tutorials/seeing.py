"""What whitening does to features: correlation matrices and spectra after BatchNorm and after IterNorm."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.tutorials.page import Tutorial

_ROWS = {
    "κ before the last norm": ("condition_before", "{:,.0f}"),
    "κ after it": ("condition_after", "{:,.1f}"),
    "κ after it, at inference": ("condition_at_inference", "{:,.1f}"),
    "mean absolute correlation before it": ("correlation_before", "{:.2f}"),
    "mean absolute correlation after it": ("correlation_after", "{:.3f}"),
    "ms a training step": ("milliseconds", "{:.1f}"),
}

_FULL = {"BN": "BatchNorm", "IterNorm": "IterNorm"}
_LINES = (
    ("BN", "after", "tab:orange", "-"),
    ("IterNorm", "before", "tab:blue", ":"),
    ("IterNorm", "after", "tab:blue", "-"),
)


def table(results: dict[str, Any], sizes: tuple[int, ...]) -> str:
    """Means over the seeds, and the accuracies of all."""
    epochs, seeds = sizes
    seen = results["seen"]["numbers"]
    rows = [
        _row(name, [form.format(mean(run[key] for run in seen[norm])) for norm in seen])
        for name, (key, form) in _ROWS.items()
    ]
    accuracies = [", ".join(f"{100 * run['accuracy']:.1f}" for run in seen[norm]) for norm in seen]
    return "\n".join(
        [
            f"![Correlations and spectra after BatchNorm and after IterNorm]({TUTORIAL.picture.name})",
            "",
            f"Features of the 500 test images around the last norm, after {epochs} epochs; the picture is of the first "
            f"of {seeds} seeds, the table has the means:",
            "",
            _row("", list(seen)),
            "| --- |" + " ---: |" * len(seen),
            *rows,
            _row("test accuracy in %, each seed", accuracies),
            "",
            f"All of it took {results['seconds']:.0f} seconds of one core.",
        ]
    )


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def draw(results: dict[str, Any], path: Path) -> None:
    """Two correlation matrices and the spectra, in one row."""
    first = results["seen"]["first"]
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(9, 3.1), layout="constrained", width_ratios=[1, 1, 1.15]
    )
    _matrix(left, "after BatchNorm", first["BN"])
    image = _matrix(middle, "after IterNorm", first["IterNorm"])
    bar = figure.colorbar(image, ax=[left, middle], shrink=0.85, ticks=[-1, 0, 1], pad=0.02)
    bar.set_label("correlation")
    _spectra(right, first)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def _matrix(axes: Axes, title: str, run: dict[str, Any]) -> Any:
    size = len(run["correlations"])
    axes.set(xticks=[0, size - 1], xticklabels=[1, size], yticks=[0, size - 1], yticklabels=[1, size], xlabel="channel")
    axes.set_title(f"Features {title}", fontsize=11)
    return axes.imshow(run["correlations"], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")


def _spectra(axes: Axes, first: dict[str, Any]) -> None:
    for norm, when, colour, style in _LINES:
        values = first[norm][when]
        label = f"{when} {_FULL[norm]}"
        axes.semilogy(range(1, len(values) + 1), values, style, color=colour, label=label)
    axes.set_title("Eigenvalues of the covariance", fontsize=11)
    axes.set(xlabel="direction, from the largest")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")


TUTORIAL = Tutorial("seeing", ("epochs", "seeds"), "seen", table, draw)
