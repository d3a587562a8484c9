"""Plots of the page: SVG for spectra and condition numbers, PNG for correlation matrices.

An SVG's box is the area between the axes, in percent, so that it fills its container while text keeps its size. Labels
lie outside of the box, in the margin that the style sheet leaves; curves lie in an inner SVG that stretches.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from whitenorm.diagnostics.page.text import format_condition, format_power_of_ten

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import LayerReport

# Points per curve, evenly spaced if there are more.
_MAX_POINTS = 192
# Height of one run in a lane, in pixels.
_ROW_HEIGHT = 14
# Colours from −1 over 0 to 1: blue and orange, which colour-blind readers can tell apart.
_STOPS = ((5, 64, 128), (84, 158, 214), (255, 255, 255), (245, 140, 60), (140, 48, 4))
_LEVELS = 65
_GREY = (128, 128, 128)


class LogAxis(NamedTuple):
    """Logarithmic axis between two powers of ten, given by their exponents."""

    low: int
    high: int

    def place(self, value: float) -> float:
        """Return the position of a value in percent from the top."""
        return self.place_exponent(math.log10(value))

    def place_exponent(self, exponent: float) -> float:
        return 100 * (self.high - exponent) / (self.high - self.low)

    def ticks(self) -> range:
        """Return the exponents of at most six powers of ten."""
        return range(self.low, self.high + 1, math.ceil((self.high - self.low) / 5))


def fit_log_axis(values: Iterable[float]) -> LogAxis:
    """Return the shortest axis that contains all positive finite values."""
    logs = [math.log10(value) for value in values if 0 < value < math.inf] or [0.0]
    low = math.floor(min(logs))
    return LogAxis(low, max(low + 1, math.ceil(max(logs))))


def live_eigenvalues(values: Sequence[float], num_dead: int | None) -> dict[int, float]:
    """Return the positive finite eigenvalues by index, without the dead ones, which are the last."""
    return {i: value for i, value in enumerate(values[: len(values) - (num_dead or 0)]) if 0 < value < math.inf}


def render_spectra(report: LayerReport, axis: LogAxis, label: str) -> str:
    """Return an SVG of the eigenvalues before and after a norm, largest first; curves end where they are dead."""
    curves = [
        _render_curve(live_eigenvalues(values, num_dead), len(values), axis, series)
        for values, num_dead, series in (
            (report.spectrum_before, report.dead_before, "input"),
            (report.spectrum_after, report.dead_after, "output"),
        )
    ]
    lines = []
    for exponent in axis.ticks():
        y = f"{axis.place_exponent(exponent):.2f}%"
        lines.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="y" x="-8" y="{y}" dy=".35em">{format_power_of_ten(exponent)}</text>')
    width = report.width
    ticks = [(0.0, 1), (100.0, width)] if width > 1 else [(0.0, 1)]
    if width > 8:
        ticks.insert(1, (100 * (width // 2 - 1) / (width - 1), width // 2))
    lines += [f'<text class="x" x="{x:.2f}%" y="100%" dy="1.5em">{index}</text>' for x, index in ticks]
    return (
        f'<svg class="plot" role="img" aria-label="{escape(label)}">{"".join(lines)}'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" class="curves">{"".join(curves)}</svg></svg>'
    )


def _render_curve(values: dict[int, float], num_values: int, axis: LogAxis, series: str) -> str:
    if not values:
        return ""
    all_points = [(100 * i / max(num_values - 1, 1), axis.place(value)) for i, value in values.items()]
    indices = sorted({round(i * (len(values) - 1) / (_MAX_POINTS - 1)) for i in range(_MAX_POINTS)})
    points = [all_points[i] for i in indices]
    if len(points) == 1:
        # A single point would be invisible: draw a short line.
        points.append((points[0][0] + (100 if num_values == 1 else 2), points[0][1]))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{series}" vector-effect="non-scaling-stroke" points="{path}"/>'


def render_lane(reports: Mapping[str, LayerReport], axis: LogAxis) -> str:
    """Return an SVG of the condition numbers before and after a norm, one row per run, from left to right."""
    positions = (f"{100 - axis.place_exponent(exponent):.2f}%" for exponent in axis.ticks())
    grid = "".join(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="100%"/>' for x in positions)
    height = _ROW_HEIGHT * len(reports) + 8
    marks = "".join(
        _render_mark(report, axis, _ROW_HEIGHT * (row + 0.5) + 4) for row, report in enumerate(reports.values())
    )
    text = escape("; ".join(f"{label}: {_describe(r)}" if label else _describe(r) for label, r in reports.items()))
    attributes = f'class="lane" role="img" aria-label="κ. {text}" height="{height}"'
    return f"<svg {attributes}><title>{text}</title>{grid}{marks}</svg>"


def render_scale(axis: LogAxis) -> str:
    """Return an SVG of the powers of ten above the lanes."""
    ticks = "".join(
        f'<text x="{100 - axis.place_exponent(tick):.2f}%" y="50%" dy=".35em">{format_power_of_ten(tick)}</text>'
        for tick in axis.ticks()
    )
    return f'<svg class="lane scale" aria-hidden="true" height="20">{ticks}</svg>'


def _describe(report: LayerReport) -> str:
    return f"{report.kind} {format_condition(report.condition_before)} → {format_condition(report.condition_after)}"


def _render_mark(report: LayerReport, axis: LogAxis, y: float) -> str:
    before, after = (
        f"{100 - axis.place(value):.2f}%" if 0 < value < math.inf else None
        for value in (report.condition_before, report.condition_after)
    )
    mark = f'<line class="change" x1="{before}" x2="{after}" y1="{y}" y2="{y}"/>' if before and after else ""
    mark += f'<circle class="input" cx="{before}" cy="{y}" r="4.5"/>' if before else ""
    return mark + (f'<circle class="output" cx="{after}" cy="{y}" r="3.5"/>' if after else "")


def heat_map_gradient() -> str:
    """Return the colours of :func:`render_heat_map` as a CSS gradient, for a legend."""
    return f"linear-gradient(to right, {', '.join(f'rgb{stop}' for stop in _STOPS)})"


def render_heat_map(matrix: Tensor) -> str:
    """Return a PNG as a data URI, with one pixel per value in [−1, 1]; values that are not finite are grey.

    Example::

        >>> render_heat_map(torch.eye(3))[:22]
        'data:image/png;base64,'
    """
    levels = ((matrix.clamp(-1, 1) + 1) / 2 * (_LEVELS - 1)).round()
    levels = levels.nan_to_num(_LEVELS).to("cpu", torch.uint8)
    palette = bytes(channel for level in range(_LEVELS) for channel in _interpolate_colour(level)) + bytes(_GREY)
    # Every row begins with the number of its filter, where 0 is none.
    rows = b"".join(b"\0" + bytes(row) for row in levels.tolist())
    height, width = matrix.shape
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette,
        b"IDAT": zlib.compress(rows, 9),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_encode_chunk(kind, data) for kind, data in chunks.items())
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _interpolate_colour(level: int) -> tuple[int, ...]:
    position = level / (_LEVELS - 1) * (len(_STOPS) - 1)
    left = min(int(position), len(_STOPS) - 2)
    share = position - left
    return tuple(round((1 - share) * a + share * b) for a, b in zip(_STOPS[left], _STOPS[left + 1], strict=True))


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
