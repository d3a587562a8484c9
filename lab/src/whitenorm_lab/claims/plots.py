"""Plotting helpers for the experiments' figures."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

matplotlib.use("Agg")

# Larger files are reduced to 256 colours, which makes photographs about four times smaller.
_MAX_BYTES = 1 << 20


def plot_spread(axes: Axes, x: Sequence[float], curves: Sequence[Sequence[float]], label: str, **style: Any) -> None:
    """Plot the mean of curves, one per seed, with the range of all seeds as a shaded band."""
    values = np.asarray(curves, float)
    (line,) = axes.plot(x, values.mean(0), label=label, **style)
    axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)


def plot_levels(
    axes: Axes, levels: Sequence[int], columns: Sequence[Sequence[float]], label: str, **style: Any
) -> None:
    """Plot mean and range over a few sizes on a logarithmic axis, from one column of values per seed for each size."""
    plot_spread(axes, levels, list(zip(*columns, strict=True)), label, marker="+", **style)
    axes.set(xscale="log")
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()


def add_grid_and_legend(axes: Axes) -> None:
    """Add a grid and a legend."""
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def add_line_styles(axes: Axes, styles: Mapping[str, str]) -> None:
    """Add legend entries for line styles, in a colour that no curve has."""
    for name, style in styles.items():
        axes.plot([], [], color="black", linestyle=style, label=name)


def add_shared_legend(figure: Figure, panels: Iterable[Axes], columns: int = 8) -> None:
    """Add a grid to each panel, and below them one legend with the labels of all panels."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        axes.grid(alpha=0.3)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(columns, len(handles))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=8)


def wrap_titles(figure: Figure) -> None:
    """Wrap titles that are wider than their panels, so that neighbours do not overlap.

    Example::

        >>> from matplotlib import pyplot as plt
        >>> figure, axes = plt.subplots(figsize=(2, 2))
        >>> _ = axes.set_title("four-layer MLP of 128 units")
        >>> wrap_titles(figure)
        >>> axes.get_title().count("\\n"), axes.get_title().replace("\\n", " ")
        (1, 'four-layer MLP of 128 units')
        >>> plt.close(figure)
    """
    figure.draw_without_rendering()
    for axes in figure.axes:
        panel_width, title = axes.get_window_extent().width, axes.get_title()
        title_width = axes.title.get_window_extent().width
        if title_width > panel_width:
            columns = max(map(len, title.splitlines())) * panel_width / title_width
            axes.title.set_text(textwrap.fill(title, max(1, int(columns)), break_long_words=False))


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as a PNG, in 256 colours if it would be large, because results are part of the repository."""
    wrap_titles(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    if buffer.tell() <= _MAX_BYTES:
        path.write_bytes(buffer.getvalue())
    else:
        Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)
