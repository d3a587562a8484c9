"""The picture of the suite: one panel per method, with milliseconds per training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.report import rows


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the layers next to the papers' formulation."""
    names = list(dict.fromkeys(name for _, name, _ in rows(results)))
    figure, axes = plt.subplots(
        len(names),
        1,
        figsize=(9, 0.5 + sum(map(len, _entries(results, names))) * 0.34 + 0.7 * len(names)),
        height_ratios=[len(entries) + 1 for entries in _entries(results, names)],
        layout="constrained",
        squeeze=False,
    )
    for panel, name, entries in zip(axes[:, 0], names, _entries(results, names), strict=True):
        _draw_bars(panel, name, entries)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    axes[-1, 0].set_xlabel("forward + backward, milliseconds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _entries(results: dict[str, Any], names: list[str]) -> list[list[tuple[list[int], dict[str, Any]]]]:
    return [[(shape, row) for shape, _, row in rows(results, name)] for name in names]


def _draw_bars(panel: Axes, name: str, entries: list[tuple[list[int], dict[str, Any]]]) -> None:
    positions = range(len(entries))
    ours = [row["ms"] for _, row in entries]
    theirs = [row["ms"] / row["to_paper"] for _, row in entries]
    panel.barh([position - 0.2 for position in positions], ours, 0.4, label="whitenorm", color="tab:blue")
    panel.barh([position + 0.2 for position in positions], theirs, 0.4, label="papers' formulation", color="lightgrey")
    for position, our, their in zip(positions, ours, theirs, strict=True):
        panel.text(our, position - 0.2, f" {our:.1f}", va="center", fontsize=7)
        panel.text(their, position + 0.2, f" {their:.1f}", va="center", fontsize=7)
    panel.set(yticks=list(positions), yticklabels=["×".join(map(str, shape)) for shape, _ in entries], title=name)
    panel.set_xlim(0, 1.1 * max(*ours, *theirs))
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
