"""Pieces of the experiments' pictures."""

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

_LARGE = 1 << 20
"""Bytes of a picture from which on colours are saved in: photographs take four times as many as they need."""


def spread_line(axes: Axes, x: Sequence[float], curves: Sequence[Sequence[float]], label: str, **style: Any) -> None:
    """The mean of one curve a seed, with the range of all seeds behind it."""
    values = np.asarray(curves, float)
    (line,) = axes.plot(x, values.mean(0), label=label, **style)
    axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)


def levels_line(
    axes: Axes, levels: Sequence[int], columns: Sequence[Sequence[float]], label: str, **style: Any
) -> None:
    """Such a line over a few sizes, each a tick of a logarithmic axis; a column has one value a seed."""
    spread_line(axes, levels, list(zip(*columns, strict=True)), label, marker="+", **style)
    axes.set(xscale="log")
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()


def finish(axes: Axes) -> None:
    """Grid and legend."""
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def line_styles(axes: Axes, styles: Mapping[str, str]) -> None:
    """Entries of a legend that say what solid and dashed lines of any colour are, in one that no curve has."""
    for name, style in styles.items():
        axes.plot([], [], color="black", linestyle=style, label=name)


def one_legend(figure: Figure, panels: Iterable[Axes], columns: int = 8) -> None:
    """Grids, and below all panels one legend of what is named in any of them."""
    named: dict[str, Artist] = {}
    for axes in panels:
        axes.grid(alpha=0.3)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = min(columns, len(named))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns, fontsize=8)


def break_titles(figure: Figure) -> None:
    """Break titles that are wider than their panels into lines, as next to others they would be cut off or run on.

    Example::

        >>> from matplotlib import pyplot as plt
        >>> figure, axes = plt.subplots(figsize=(2, 2))
        >>> _ = axes.set_title("four-layer MLP of 128 units")
        >>> break_titles(figure)
        >>> axes.get_title().count("\\n"), axes.get_title().replace("\\n", " ")
        (1, 'four-layer MLP of 128 units')
        >>> plt.close(figure)
    """
    figure.draw_without_rendering()
    for axes in figure.axes:
        room, words = axes.get_window_extent().width, axes.get_title()
        taken = axes.title.get_window_extent().width
        if taken > room:
            longest = max(map(len, words.splitlines()))
            axes.title.set_text(textwrap.fill(words, max(1, int(longest * room / taken)), break_long_words=False))


def save(figure: Figure, path: Path) -> None:
    """As a PNG, of 256 colours where it would be large: results are kept beside the code."""
    break_titles(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    if buffer.tell() <= _LARGE:
        path.write_bytes(buffer.getvalue())
    else:
        Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)
