"""The top of the page: sums, condition numbers by layer, advice, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from whitenorm.diagnostics.page.plots import conditions, log_axis
from whitenorm.diagnostics.page.text import number, percent, title_of

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport

# Pieces of advice in sight; more are folded away.
_ADVICE = 6


class _Column(NamedTuple):
    key: str
    head: str
    shown: Callable[[float | None], str]
    meaning: str


_COLUMNS = (
    _Column("width", "C", number, "channels"),
    _Column("groups", "groups", number, "groups of channels that are normalized together"),
    _Column("condition_before", "κ input", number, "condition number λ_max/λ_min of the norm's input"),
    _Column("condition_after", "κ output", number, "the same of its output; 1 is white"),
    _Column("correlation_before", "|r| input", number, "mean absolute correlation of two channels of the input"),
    _Column("correlation_after", "|r| output", number, "the same of the output; 0 is white"),
    _Column("dead", "dead", percent, "share of directions with hardly any variance in the input"),
    _Column("disturbance", "SND", number, "stochastic normalization disturbance at this batch size (batch methods)"),
    _Column("drift", "drift", number, "distance of this batch's statistics from the population's, in the latter's σ"),
    _Column("gradient_ratio", "gradient", number, "norm of the input's gradient over the output's"),
    _Column("time_share", "time", percent, "share of the model's forward time"),
    _Column("memory_share", "memory", percent, "share of what the model keeps for backward"),
)


def tiles(runs: Mapping[str, Inspection]) -> str:
    """A card a run: medians and sums over its norms."""
    cards = []
    for label, reports in runs.items():
        facts = {
            "norms": str(len(reports)),
            "median κ": _change(reports, "condition", statistics.median),
            "mean |r|": _change(reports, "correlation", statistics.fmean),
            "forward time": _total(r.time_share for r in reports),
            "memory": _total(r.memory_share for r in reports),
            "advice": str(sum(len(r.advice) for r in reports)),
        }
        items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
        heading = f"<h2>{escape(label)}</h2>" if len(runs) > 1 else ""
        cards.append(f'<section class="card">{heading}<dl class="tiles">{items}</dl></section>')
    return "".join(cards)


def _total(shares: Iterable[float | None]) -> str:
    measured = [share for share in shares if share is not None]
    return percent(sum(measured)) if measured else "–"


def condition_plots(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """A plot a run, on the same axes."""
    axis = log_axis(v for reports in runs.values() for r in reports for v in (r.condition_before, r.condition_after))
    plots = []
    for label, reports in runs.items():
        run = f" {label}" if len(runs) > 1 else ""
        words = f"Condition number of each norm's input and output, log scale.{run}"
        places = [names.index(r.name) for r in reports]
        heading = f"<h3>{escape(label)}</h3>" if len(runs) > 1 else ""
        plots.append(f'<div class="wide">{heading}{conditions(reports, places, len(names), axis, words)}</div>')
    return (
        f'<figure>{"".join(plots)}<figcaption><span class="key input">input</span> <span class="key output">output'
        "</span> Condition number of every norm's input and output, in the order they run; lower is better, "
        "1 is white, ∞ is singular.</figcaption></figure>"
    )


def advice(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """What is off in the set-up, by layer."""
    items = []
    for label, reports in runs.items():
        run = f" <small>{escape(label)}</small>" if len(runs) > 1 else ""
        for report in reports:
            link = f'<a href="#layer-{names.index(report.name) + 1}">{title_of(report.name)}</a>'
            items += [f"<li>{link}{run}: {escape(words)}</li>" for words in report.advice]
    if not items:
        return '<p class="fine">Nothing in the set-up of these norms is off.</p>'
    more = items[_ADVICE:]
    folded = f"<details><summary>{len(more)} more</summary><ul>{''.join(more)}</ul></details>" if more else ""
    return f'<div class="advice" role="note"><ul>{"".join(items[:_ADVICE])}</ul>{folded}</div>'


def table(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """All numbers: a row a norm and run."""
    several = len(runs) > 1
    heads = ["#", "norm", *(["model"] if several else []), "kind"]
    head = "".join(f'<th scope="col">{words}</th>' for words in heads)
    head += "".join(f'<th scope="col" title="{escape(c.meaning)}">{c.head}</th>' for c in _COLUMNS)
    found = {label: {r.name: r for r in reports} for label, reports in runs.items()}
    bodies = []
    for index, name in enumerate(names, 1):
        rows = [(label, reports[name]) for label, reports in found.items() if name in reports]
        span = f' rowspan="{len(rows)}"'
        lead = f'<td{span}>{index}</td><th scope="rowgroup"{span}><a href="#layer-{index}">{title_of(name)}</a></th>'
        cells = [(f"<td>{escape(label)}</td>" if several else "") + _row(report) for label, report in rows]
        bodies.append(f"<tbody><tr>{lead}{'</tr><tr>'.join(cells)}</tr></tbody>")
    meanings = "".join(f"<div><dt>{c.head}</dt><dd>{c.meaning}</dd></div>" for c in _COLUMNS)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="All norms"><table><thead><tr>{head}</tr></thead>'
        f'{"".join(bodies)}</table></div><details class="meanings"><summary>What the columns mean</summary>'
        f"<dl>{meanings}</dl></details>"
    )


def _row(report: LayerReport) -> str:
    flag = f' <span class="flag" title="{escape(" ".join(report.advice))}">advice</span>' if report.advice else ""
    cells = "".join(f'<td class="number">{c.shown(getattr(report, c.key))}</td>' for c in _COLUMNS)
    return f"<td>{escape(report.kind)}{flag}</td>{cells}"


def _change(reports: Inspection, measure: str, pooled: Callable[[list[float]], float]) -> str:
    ends = []
    for side in ("before", "after"):
        values = [getattr(r, f"{measure}_{side}") for r in reports]
        known = [value for value in values if not math.isnan(value)]
        ends.append(number(pooled(known) if known else None))
    return " → ".join(ends)
