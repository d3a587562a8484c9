"""Plots as SVG that fill the width they are given while their text keeps its size.

The SVG's box is the area between the axes, in percent; labels stand outside of it, in the margin that the style sheet
leaves, and curves lie in an inner SVG that stretches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from whitenorm.diagnostics.page.text import condition, power_of_ten

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import LayerReport

# Points of a curve, evenly drawn from more.
_POINTS = 192
# The height of a run in a lane, in pixels.
_ROW = 14


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


def live(values: Sequence[float], dead: int | None) -> dict[int, float]:
    """By place, the finite eigenvalues that are not dead, which are the last."""
    return {place: value for place, value in enumerate(values[: len(values) - (dead or 0)]) if 0 < value < math.inf}


def spectra(report: LayerReport, axis: LogAxis, label: str) -> str:
    """The eigenvalues before and after a norm, from the largest; a curve ends where they are dead."""
    curves = [
        _curve(live(values, dead), len(values), axis, series)
        for values, dead, series in (
            (report.spectrum_before, report.dead_before, "input"),
            (report.spectrum_after, report.dead_after, "output"),
        )
    ]
    inner = f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" class="curves">{"".join(curves)}</svg>'
    width = report.width
    ticks = [(0.0, "1"), (100.0, str(width))] if width > 1 else [(0.0, "1")]
    if width > 8:
        ticks.insert(1, (100 * (width // 2 - 1) / (width - 1), str(width // 2)))
    return _framed(inner, axis, ticks, label)


def lane(reports: Mapping[str, LayerReport], axis: LogAxis) -> str:
    """The condition number before and after a norm, a row a run, from left to right."""
    lines = (_across(10.0**exponent, axis) for exponent in axis.ticks())
    grid = "".join(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="100%"/>' for x in lines)
    height = _ROW * len(reports) + 8
    marks = "".join(_mark(report, axis, _ROW * (row + 0.5) + 4) for row, report in enumerate(reports.values()))
    words = "; ".join(f"{label}: {_words(r)}" if label else _words(r) for label, r in reports.items())
    return (
        f'<svg class="lane" role="img" aria-label="κ. {escape(words)}" height="{height}">'
        f"<title>{escape(words)}</title>{grid}{marks}</svg>"
    )


def scale(axis: LogAxis) -> str:
    """The powers of ten over the lanes."""
    ticks = "".join(
        f'<text x="{_across(10.0**exponent, axis)}" y="50%" dy=".35em">{power_of_ten(exponent)}</text>'
        for exponent in axis.ticks()
    )
    return f'<svg class="lane scale" aria-hidden="true" height="20">{ticks}</svg>'


def _across(value: float, axis: LogAxis) -> str:
    return f"{100 - axis.place(value):.2f}%"


def _words(report: LayerReport) -> str:
    return f"{report.kind} {condition(report.condition_before)} → {condition(report.condition_after)}"


def _mark(report: LayerReport, axis: LogAxis, y: float) -> str:
    before, after = (
        _across(value, axis) if 0 < value < math.inf else None
        for value in (report.condition_before, report.condition_after)
    )
    mark = f'<line class="change" x1="{before}" x2="{after}" y1="{y}" y2="{y}"/>' if before and after else ""
    mark += f'<circle class="input" cx="{before}" cy="{y}" r="4.5"/>' if before else ""
    return mark + (f'<circle class="output" cx="{after}" cy="{y}" r="3.5"/>' if after else "")


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
