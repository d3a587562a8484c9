"""The table of all numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from whitenorm.diagnostics.page.text import (
    format_change,
    format_condition,
    format_name,
    format_number,
    format_percent,
    reports_by_run,
)

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport


class Column(NamedTuple):
    """Fields of a report under one heading: one alone, or a pair for input and output."""

    keys: tuple[str, ...]
    heading: str
    format: Callable[[float | None], str]
    meaning: str


def _pair(measure: str) -> tuple[str, str]:
    return f"{measure}_before", f"{measure}_after"


COLUMNS = (
    Column(("width",), "C", format_number, "channels"),
    Column(("groups",), "groups", format_number, "groups of channels that are normalized together"),
    Column(_pair("condition"), "κ", format_condition, "condition number λ_max/λ_min over live directions; 1 is white"),
    Column(_pair("condition90"), "κ₉₀", format_condition, "κ without the tenth of the directions that vary least"),
    Column(_pair("dead"), "dead", format_number, "directions that vary by rounding errors only"),
    Column(_pair("correlation"), "|r|", format_number, "mean absolute correlation of two channels; 0 is white"),
    Column(("disturbance",), "SND", format_number, "noise of batch statistics at this batch size (batch methods)"),
    Column(("drift",), "drift", format_number, "distance of the batch's statistics from the population's, in its σ"),
    Column(("gradient_ratio",), "gradient", format_number, "norm of the input's gradient over the output's"),
    Column(("time_share",), "time", format_percent, "share of the model's forward time"),
    Column(("memory_share",), "memory", format_percent, "share of what the model saves for backward"),
)
# Measures where less is better. A change by this factor is highlighted.
_JUDGED = ("condition_after", "condition90_after", "correlation_after")
_FACTOR = 1.25


def render_table(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """Return all numbers with one row per norm and run; changes for better or worse since the first run are marked."""
    has_runs = len(runs) > 1
    bodies = []
    for index, name in enumerate(names, 1):
        reports = reports_by_run(runs, name)
        span = f' rowspan="{len(reports)}"'
        link = f'<a href="#layer-{index}">{format_name(name)}</a>'
        lead = f'<td{span}>{index}</td><th scope="rowgroup"{span}>{link}</th>'
        first = next(iter(reports.values()))
        rows = [
            (f'<td class="run">{escape(label)}</td>' if has_runs else "") + _render_row(report, first)
            for label, report in reports.items()
        ]
        mark = ' class="changed"' if format_change(reports) else ""
        bodies.append(f"<tbody{mark}><tr>{lead}{'</tr><tr>'.join(rows)}</tr></tbody>")
    meanings = "".join(f"<div><dt>{c.heading}</dt><dd>{c.meaning}</dd></div>" for c in COLUMNS)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="All norms"><table>{_render_head(has_runs)}'
        f'{"".join(bodies)}</table></div><details class="meanings"><summary>What the columns mean</summary>'
        f"<dl>{meanings}</dl></details>"
    )


def _render_head(has_runs: bool) -> str:
    headings = ["#", "norm", *(["model"] if has_runs else []), "kind"]
    top = "".join(f'<th scope="col" rowspan="2">{heading}</th>' for heading in headings)
    bottom = ""
    for column in COLUMNS:
        is_pair = len(column.keys) > 1
        span = 'scope="colgroup" colspan="2"' if is_pair else 'scope="col" rowspan="2"'
        top += f'<th {span} title="{escape(column.meaning)}">{column.heading}</th>'
        if is_pair:
            bottom += '<th scope="col" class="number">input</th><th scope="col" class="number">output</th>'
    return f"<thead><tr>{top}</tr><tr>{bottom}</tr></thead>"


def _render_row(report: LayerReport, first: LayerReport) -> str:
    flag = f' <span class="flag" title="{escape(" ".join(report.advice))}">advice</span>' if report.advice else ""
    cells = "".join(
        f'<td class="number{_judge_change(key, report, first)}">{column.format(getattr(report, key))}</td>'
        for column in COLUMNS
        for key in column.keys
    )
    return f'<td class="kind">{escape(report.kind)}{flag}</td>{cells}'


def _judge_change(key: str, report: LayerReport, first: LayerReport) -> str:
    """Return the CSS class of a change for better or worse, or an empty string."""
    old, new = getattr(first, key), getattr(report, key)
    if key not in _JUDGED or not (math.isfinite(old) and math.isfinite(new)):
        return ""
    return " better" if new * _FACTOR < old else " worse" if new > old * _FACTOR else ""
