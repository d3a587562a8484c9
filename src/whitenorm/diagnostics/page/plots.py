"""Plots as SVG that fill the width they are given while their text keeps its size.

The SVG's box is the area between the axes, in percent; labels stand outside of it, in the margin that the style sheet
leaves, and curves lie in an inner SVG that stretches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from whitenorm.diagnostics.conditioning import negligible
from whitenorm.diagnostics.page.text import number, power_of_ten, title_of

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import LayerReport

# Points of a curve, evenly drawn from more.
_POINTS = 192
# Where infinite values lie: above the area, in pixels.
_LANE = -18


class LogAxis(NamedTuple):
    """From one power of ten to another."""

    low: int
    high: int

    def place(self, value: float) -> float:
        """Percent from the top."""
        return 100 * (self.high - math.log10(value)) / (self.high - self.low)

    def ticks(self) -> range:
        return range(self.low, self.high + 1, math.ceil((self.high - self.low) / 5))


def log_axis(values: Iterable[float]) -> LogAxis:
    """The least whole powers of ten around all values that have a logarithm."""
    logs = [math.log10(value) for value in values if 0 < value < math.inf] or [0.0]
    low = math.floor(min(logs))
    return LogAxis(low, max(low + 1, math.ceil(max(logs))))


def above_rounding(values: Sequence[float]) -> dict[int, float]:
    """By place, the finite eigenvalues that are not zero to float64's precision."""
    finite = {place: value for place, value in enumerate(values) if math.isfinite(value)}
    least = negligible(max(finite.values(), default=0.0), len(values))
    return {place: value for place, value in finite.items() if value > least}


def spectra(report: LayerReport, axis: LogAxis, label: str) -> str:
    """The eigenvalues before and after a norm, from the largest; a curve ends where they are zero."""
    curves = [
        _curve(above_rounding(values), len(values), axis, series)
        for values, series in ((report.spectrum_before, "input"), (report.spectrum_after, "output"))
    ]
    inner = f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" class="curves">{"".join(curves)}</svg>'
    width = report.width
    ticks = [(0.0, "1"), (100.0, str(width))] if width > 1 else [(0.0, "1")]
    if width > 8:
        ticks.insert(1, (100 * (width // 2 - 1) / (width - 1), str(width // 2)))
    return _framed(inner, axis, ticks, label)


def conditions(reports: Sequence[LayerReport], places: Sequence[int], count: int, axis: LogAxis, label: str) -> str:
    """The condition number before and after each norm; infinite ones in a lane of their own on top."""
    marks = []
    for report, place in zip(reports, places, strict=True):
        x = f"{100 * (place + 0.5) / count:.2f}%"
        before, after = (_height(value, axis) for value in (report.condition_before, report.condition_after))
        words = f"{title_of(report.name)}: κ {number(report.condition_before)} → {number(report.condition_after)}"
        mark = f"<title>{words}</title>"
        if before and after:
            mark += f'<line class="change" x1="{x}" x2="{x}" y1="{before}" y2="{after}"/>'
        if before:
            mark += f'<circle class="input" cx="{x}" cy="{before}" r="5"/>'
        if after:
            mark += f'<circle class="output" cx="{x}" cy="{after}" r="3"/>'
        # The table has the same links for the keyboard.
        marks.append(f'<a href="#layer-{place + 1}" tabindex="-1">{mark}</a>')
    step = max(1, math.ceil(count / 6))
    step = next(nice for nice in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, step) if nice >= step)
    shown = [1, *range(max(step, 2), count + 1, step)]
    ticks = [(100 * (tick - 0.5) / count, str(tick)) for tick in shown]
    infinite = any(math.inf in (r.condition_before, r.condition_after) for r in reports)
    lane = f'<text class="y" x="-8" y="{_LANE}" dy=".35em">∞</text>' if infinite else ""
    return _framed(lane + "".join(marks), axis, ticks, label)


def _height(value: float, axis: LogAxis) -> str | None:
    if not value > 0:
        # NaN, or no condition number.
        return None
    return str(_LANE) if value == math.inf else f"{axis.place(value):.2f}%"


def _curve(values: dict[int, float], count: int, axis: LogAxis, series: str) -> str:
    if not values:
        return ""
    all_points = [(100 * place / max(count - 1, 1), axis.place(value)) for place, value in values.items()]
    drawn = sorted({round(i * (len(values) - 1) / (_POINTS - 1)) for i in range(_POINTS)})
    points = [all_points[i] for i in drawn]
    if len(points) == 1:
        # One point has no length; a short stroke does.
        points.append((points[0][0] + (100 if count == 1 else 2), points[0][1]))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{series}" vector-effect="non-scaling-stroke" points="{path}"/>'


def _framed(body: str, axis: LogAxis, ticks: list[tuple[float, str]], label: str) -> str:
    lines = []
    for exponent in axis.ticks():
        y = f"{100 * (axis.high - exponent) / (axis.high - axis.low):.2f}%"
        lines.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="y" x="-8" y="{y}" dy=".35em">{power_of_ten(exponent)}</text>')
    lines += [f'<text class="x" x="{x:.2f}%" y="100%" dy="1.5em">{words}</text>' for x, words in ticks]
    return f'<svg class="plot" role="img" aria-label="{escape(label)}">{"".join(lines)}{body}</svg>'
