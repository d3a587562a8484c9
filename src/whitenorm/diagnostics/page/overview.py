"""The top of the page: totals, changes, condition numbers per layer, and advice."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from whitenorm.diagnostics.page.plots import fit_log_axis, render_lane, render_scale
from whitenorm.diagnostics.page.text import format_change, format_name, format_number, format_percent, reports_by_run

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport

# Pieces of advice that are visible; more are folded away.
_MAX_VISIBLE = 6


def render_tiles(runs: Mapping[str, Inspection]) -> str:
    """Return one card per run with medians and sums over its norms."""
    cards = []
    for label, reports in runs.items():
        facts = {
            "norms": str(len(reports)),
            "median κ": _format_before_after(reports, "condition", statistics.median),
            "mean |r|": _format_before_after(reports, "correlation", statistics.fmean),
            "forward time": _format_total(r.time_share for r in reports),
            "memory": _format_total(r.memory_share for r in reports),
            "advice": str(len(reports.advice())),
        }
        items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
        heading = f"<h2>{escape(label)}</h2>" if len(runs) > 1 else ""
        cards.append(f'<section class="card">{heading}<dl class="tiles">{items}</dl></section>')
    return "".join(cards)


def _format_before_after(reports: Inspection, measure: str, average: Callable[[list[float]], float]) -> str:
    averages = []
    for side in ("before", "after"):
        values = [getattr(r, f"{measure}_{side}") for r in reports]
        values = [value for value in values if not math.isnan(value)]
        averages.append(format_number(average(values) if values else None))
    return " → ".join(averages)


def _format_total(shares: Iterable[float | None]) -> str:
    values = [share for share in shares if share is not None]
    return format_percent(sum(values)) if values else "–"


def render_changes(runs: Mapping[str, Inspection]) -> str:
    """Return one sentence per run: which norms differ from the first run's, and the effect on their output."""
    labels = list(runs)
    if len(labels) < 2:
        return ""
    first = {report.name: report for report in runs[labels[0]]}
    items = []
    for label in labels[1:]:
        pairs = [(first[r.name], r) for r in runs[label] if r.name in first and first[r.name].kind != r.kind]
        items.append(f"<li><b>{escape(label)}</b>: {_describe_changes(pairs, len(runs[label]))}</li>")
    return f'<h2>What changed</h2><ul class="changes">{"".join(items)}</ul>'


def _describe_changes(pairs: list[tuple[LayerReport, LayerReport]], num_norms: int) -> str:
    if not pairs:
        return f"none of {num_norms} norms is of another kind."
    kinds = Counter((old.kind, new.kind) for old, new in pairs)
    replacements = ", ".join(
        f"{f'{n} ' if len(kinds) > 1 else ''}{escape(old)} → {escape(new)}" for (old, new), n in kinds.most_common()
    )
    medians = []
    for symbol, key in (("κ", "condition_after"), ("κ₉₀", "condition90_after"), ("|r|", "correlation_after")):
        values = [[getattr(pair[side], key) for pair in pairs] for side in (0, 1)]
        finite = [[value for value in side if math.isfinite(value)] for side in values]
        if all(finite):
            old, new = (statistics.median(side) for side in finite)
            medians.append(f"{symbol} {format_number(old)} → <b>{format_number(new)}</b>")
    output = f" Medians of their output: {', '.join(medians)}." if medians else ""
    return f"{len(pairs)} of {num_norms} norms: {replacements}.{output}"


def render_conditions(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """Return a plot with one lane per norm and one row per run, on one axis; norms that changed are highlighted."""
    values = [v for reports in runs.values() for r in reports for v in (r.condition_before, r.condition_after)]
    axis = fit_log_axis([1.0, *values])
    lanes = []
    for index, name in enumerate(names, 1):
        reports = reports_by_run(runs, name)
        change = format_change(reports)
        kind = change or escape(next(iter(reports.values())).kind)
        lanes.append(
            f'<li{" class=changed" if change else ""}><a href="#layer-{index}">{format_name(name)}</a>'
            f'<span class="kind" title="{kind}">{kind}</span>{render_lane(reports, axis)}</li>'
        )
    order = f" Rows of a norm from the top: {', '.join(map(escape, runs))}." if len(runs) > 1 else ""
    return (
        f'<figure><div class="lanes">{render_scale(axis)}<ol>{"".join(lanes)}</ol></div><figcaption>'
        '<span class="key input">input</span> <span class="key output">output</span> Condition number κ of every '
        f"norm's input and output, in the order they run, log scale; 1 is white. Dead directions are left out.{order}"
        "</figcaption></figure>"
    )


def render_advice(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """Return each distinct piece of advice with links to its layers."""
    labels: dict[tuple[str, str], list[str]] = {}
    for label, reports in runs.items():
        links: dict[str, list[str]] = {}
        for report in reports:
            link = f'<a href="#layer-{names.index(report.name) + 1}">{format_name(report.name)}</a>'
            for text in report.advice:
                links.setdefault(text, []).append(link)
        for text, layers in links.items():
            labels.setdefault((text, ", ".join(layers)), []).append(label)
    items = []
    for (text, layers_html), run_labels in labels.items():
        run = f" <small>{escape(', '.join(run_labels))}</small>" if len(run_labels) < len(runs) else ""
        items.append(f"<li>{layers_html}{run}: {escape(text)}</li>")
    if not items:
        return '<p class="fine">No problems found in the set-up of these norms.</p>'
    more = items[_MAX_VISIBLE:]
    folded = f"<details><summary>{len(more)} more</summary><ul>{''.join(more)}</ul></details>" if more else ""
    return f'<div class="advice" role="note"><ul>{"".join(items[:_MAX_VISIBLE])}</ul>{folded}</div>'
