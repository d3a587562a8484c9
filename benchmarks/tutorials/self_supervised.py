"""Table and picture of the self-supervised tutorial: k-NN accuracy by epoch, and before training."""

from __future__ import annotations

from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.tutorials.page import Tutorial


def table(results: dict[str, Any], sizes: tuple[int, ...]) -> str:
    """Return the table of every seed's accuracy before and after training."""
    images, epochs, seeds = sizes
    history = results["history"]
    tested = results["history"]["tested"]
    before, after = ([curve[index] for curve in history["accuracy"]] for index in (0, -1))
    return "\n".join(
        [
            f"Accuracy in % of 5 nearest neighbours among {images:,} training images, on {tested:,} test images:",
            "",
            "| | " + " | ".join(f"seed {seed}" for seed in range(seeds)) + " | mean |",
            "| --- |" + " ---: |" * (seeds + 1),
            _format_row("encoder before training", before),
            _format_row(f"after {epochs} epochs of W-MSE", after),
            "",
            f"![Accuracy by epoch]({TUTORIAL.picture.name})",
            "",
            f"Each seed took {results['seconds'] / seeds:.0f} seconds on one core. An accuracy near a third on "
            f"{tested:,} images has a standard error of {100 * (2 / 9 / tested) ** 0.5:.1f} points.",
        ]
    )


def _format_row(name: str, values: list[float]) -> str:
    return f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in (*values, mean(values))) + " |"


def draw(results: dict[str, Any]) -> Figure:
    """Draw one line per seed, and their mean accuracy before training."""
    curves = results["history"]["accuracy"]
    figure, axes = plt.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    for seed, curve in enumerate(curves):
        axes.plot(range(len(curve)), [100 * value for value in curve], marker=".", label=f"W-MSE, seed {seed}")
    start = 100 * mean(curve[0] for curve in curves)
    axes.axhline(start, color="grey", linestyle="--", label="encoder before training, mean")
    axes.set(xlabel="epoch", ylabel="5-NN accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    return figure


TUTORIAL = Tutorial("self-supervised", ("images", "epochs", "seeds"), "history", table, draw)
