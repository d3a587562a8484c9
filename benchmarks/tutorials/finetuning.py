"""Table and picture of the fine-tuning tutorial: accuracies by epoch."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.tutorials.page import Tutorial


def table(results: dict[str, Any], sizes: tuple[int, ...]) -> str:
    """Return the table of accuracies after 0, 1 and all epochs, with the settings of the run."""
    size, images, epochs = sizes
    rows = [
        f"| {name} | " + " | ".join(_format_percent(curve, epoch) for epoch in (0, 1, epochs)) + " |"
        for name, curve in results["history"].items()
    ]
    return "\n".join(
        [
            f"Test accuracy in % on {images:,} images, fine-tuned on {images:,} others, at {size}²; one seed:",
            "",
            f"| | before | after 1 epoch | after {epochs} epochs |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
            f"![Accuracy by epoch]({TUTORIAL.picture.name})",
            "",
            f"One run of {results['seconds'] / 60:.0f} minutes on one core. An accuracy near 70 % on {images:,} images "
            f"has a standard error of {100 * (0.21 / images) ** 0.5:.1f} points. Other seeds use other images.",
        ]
    )


def _format_percent(curve: list[float], epoch: int) -> str:
    """Format an accuracy; a network that was not trained has only its first."""
    return f"{100 * curve[epoch]:.1f}" if epoch < len(curve) else "–"


def draw(results: dict[str, Any]) -> Figure:
    """Draw accuracy by epoch, one line per network."""
    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=110, layout="constrained")
    for name, curve in results["history"].items():
        axes.plot(range(len(curve)), [100 * value for value in curve], label=name, marker=".")
    longest = max(map(len, results["history"].values()))
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", xticks=range(longest))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


TUTORIAL = Tutorial("finetuning", ("size", "images", "epochs"), "history", table, draw)
