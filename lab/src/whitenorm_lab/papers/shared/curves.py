"""The picture of trainings: errors by epoch, a panel a case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from whitenorm_lab.claims.plots import plot_spread
from whitenorm_lab.claims.results import Results

_STYLES: dict[str, Literal["-", "--"]] = {"train_error": "-", "test_error": "--"}
_WORDS = {"train_error": "training", "test_error": "test"}
# Panels side by side, and entries of the legend.
_COLUMNS, _ENTRIES = 4, 7


def curves(panels: Mapping[str, Mapping[str, Results]]) -> Figure:
    """Training and test error of each case's runs by name; one legend has the names' colours and the lines' styles."""
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    size = max(5.0, 3.4 * columns), 3.2 * rows + 0.5
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    names = dict.fromkeys(name for found in panels.values() for name in found)
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    for panel, (case, found) in zip(axes.flat, panels.items(), strict=False):
        for name, runs in found.items():
            _lines(panel, runs, colours[name])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(xlabel="epoch", ylabel="error (%)", title=case)
        panel.grid(alpha=0.3)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
    handles += [Line2D([], [], color="black", linestyle=style, label=_WORDS[w]) for w, style in _STYLES.items()]
    ncols = min(len(handles), _ENTRIES if columns > 1 else _ENTRIES // 2 + 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, fontsize=8)
    return figure


def _lines(panel: Axes, runs: Results, colour: str) -> None:
    epochs = len(runs[0].values["train_error"])
    for which, style in _STYLES.items():
        points = len(runs[0].values[which])
        # Tests are every so many epochs, and after the last.
        at = [math.ceil(epochs / points) * (i + 1) for i in range(points - 1)] + [epochs]
        marker = "." if points == 1 else None
        plot_spread(panel, at, runs.values(which), "", color=colour, linestyle=style, marker=marker)
