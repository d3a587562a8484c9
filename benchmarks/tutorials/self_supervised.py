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
    tested, accuracy = history["tested"], history["accuracy"]
    runs = sum(len(curves) for curves in accuracy.values())
    return "\n".join(
        [
            f"Accuracy in % of 5 nearest neighbours among {images:,} training images, on {tested:,} test images:",
            "",
            "| | " + " | ".join(f"seed {seed}" for seed in range(seeds)) + " | mean |",
            "| --- |" + " ---: |" * (seeds + 1),
            _format_row("encoder before training", [curve[0] for curve in accuracy["W-MSE"]]),
            *(
                _format_row(f"after {epochs} epochs: {name}", [curve[-1] for curve in curves])
                for name, curves in accuracy.items()
            ),
            "",
            f"![Accuracy by epoch]({TUTORIAL.picture.name})",
            "",
            f"Each training took {results['seconds'] / runs:.0f} seconds on one core on average. An accuracy near a "
            f"third on {tested:,} images has a standard error of {100 * (2 / 9 / tested) ** 0.5:.1f} points.",
        ]
    )


def _format_row(name: str, values: list[float]) -> str:
    return f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in (*values, mean(values))) + " |"


def draw(results: dict[str, Any]) -> Figure:
    """Draw each loss's mean accuracy over seeds, with its range, and the mean before training."""
    accuracy = results["history"]["accuracy"]
    figure, axes = plt.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    for name, curves in accuracy.items():
        by_epoch = [[100 * value for value in values] for values in zip(*curves, strict=True)]
        (line,) = axes.plot(range(len(by_epoch)), [mean(values) for values in by_epoch], marker=".", label=name)
        axes.fill_between(
            range(len(by_epoch)), list(map(min, by_epoch)), list(map(max, by_epoch)), color=line.get_color(), alpha=0.15
        )
    start = 100 * mean(curve[0] for curve in accuracy["W-MSE"])
    axes.axhline(start, color="grey", linestyle="--", label="before training")
    axes.set(xlabel="epoch", ylabel="5-NN accuracy (%), mean and range")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best")
    return figure


TUTORIAL = Tutorial("self-supervised", ("images", "epochs", "seeds"), "history", table, draw)
