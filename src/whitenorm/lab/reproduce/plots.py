"""Pieces of the experiments' pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

matplotlib.use("Agg")


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
