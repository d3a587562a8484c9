"""The table of all numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from whitenorm.diagnostics.page.layers import by_label
from whitenorm.diagnostics.page.text import change_of, condition, number, percent, title_of

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport


class Column(NamedTuple):
    """Keys of a report that stand under one head, of input and output or one alone."""

    keys: tuple[str, ...]
    head: str
    shown: Callable[[float | None], str]
    meaning: str


def _pair(measure: str) -> tuple[str, str]:
    return f"{measure}_before", f"{measure}_after"


COLUMNS = (
    Column(("width",), "C", number, "channels"),
    Column(("groups",), "groups", number, "groups of channels that are normalized together"),
    Column(_pair("condition"), "κ", condition, "condition number λ_max/λ_min over the live directions; 1 is white"),
    Column(_pair("condition90"), "κ₉₀", condition, "the same without the tenth of them that vary least"),
    Column(_pair("dead"), "dead", number, "directions that do not vary, but for rounding"),
    Column(_pair("correlation"), "|r|", number, "mean absolute correlation of two channels; 0 is white"),
    Column(("disturbance",), "SND", number, "stochastic normalization disturbance at this batch size (batch methods)"),
    Column(("drift",), "drift", number, "distance of this batch's statistics from the population's, in the latter's σ"),
    Column(("gradient_ratio",), "gradient", number, "norm of the input's gradient over the output's"),
    Column(("time_share",), "time", percent, "share of the model's forward time"),
    Column(("memory_share",), "memory", percent, "share of what the model keeps for backward"),
)
# Where less is better, and a change by this factor is picked out.
_JUDGED = ("condition_after", "condition90_after", "correlation_after")
_FACTOR = 1.25


def table(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """All numbers: a row a norm and run; what is better or worse than in the first run is marked."""
    several = len(runs) > 1
    bodies = []
    for index, name in enumerate(names, 1):
        here = by_label(runs, name)
        span = f' rowspan="{len(here)}"'
        lead = f'<td{span}>{index}</td><th scope="rowgroup"{span}><a href="#layer-{index}">{title_of(name)}</a></th>'
        first = next(iter(here.values()))
        runs_here = [f'<td class="run">{escape(label)}</td>' if several else "" for label in here]
        rows = [run + _row(report, first) for run, report in zip(runs_here, here.values(), strict=True)]
        mark = ' class="changed"' if change_of(here) else ""
        bodies.append(f"<tbody{mark}><tr>{lead}{'</tr><tr>'.join(rows)}</tr></tbody>")
    meanings = "".join(f"<div><dt>{c.head}</dt><dd>{c.meaning}</dd></div>" for c in COLUMNS)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="All norms"><table>{_head(several)}'
        f'{"".join(bodies)}</table></div><details class="meanings"><summary>What the columns mean</summary>'
        f"<dl>{meanings}</dl></details>"
    )


def _head(several: bool) -> str:
    heads = ["#", "norm", *(["model"] if several else []), "kind"]
    top = "".join(f'<th scope="col" rowspan="2">{words}</th>' for words in heads)
    below = ""
    for column in COLUMNS:
        pair = len(column.keys) > 1
        span = 'scope="colgroup" colspan="2"' if pair else 'scope="col" rowspan="2"'
        top += f'<th {span} title="{escape(column.meaning)}">{column.head}</th>'
        below += '<th scope="col" class="number">input</th><th scope="col" class="number">output</th>' if pair else ""
    return f"<thead><tr>{top}</tr><tr>{below}</tr></thead>"


def _row(report: LayerReport, first: LayerReport) -> str:
    flag = f' <span class="flag" title="{escape(" ".join(report.advice))}">advice</span>' if report.advice else ""
    cells = "".join(
        f'<td class="number{_verdict(key, report, first)}">{column.shown(getattr(report, key))}</td>'
        for column in COLUMNS
        for key in column.keys
    )
    return f'<td class="kind">{escape(report.kind)}{flag}</td>{cells}'


def _verdict(key: str, report: LayerReport, first: LayerReport) -> str:
    old, new = getattr(first, key), getattr(report, key)
    if key not in _JUDGED or not (math.isfinite(old) and math.isfinite(new)):
        return ""
    return " better" if new * _FACTOR < old else " worse" if new > old * _FACTOR else ""
