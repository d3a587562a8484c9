"""The top of the page: sums, what changed, condition numbers by layer, and advice."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from whitenorm.diagnostics.page.layers import by_label
from whitenorm.diagnostics.page.plots import lane, log_axis, scale
from whitenorm.diagnostics.page.text import change_of, number, percent, title_of

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport

# Pieces of advice in sight; more are folded away.
_ADVICE = 6


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
            "advice": str(len(reports.advice())),
        }
        items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
        heading = f"<h2>{escape(label)}</h2>" if len(runs) > 1 else ""
        cards.append(f'<section class="card">{heading}<dl class="tiles">{items}</dl></section>')
    return "".join(cards)


def _total(shares: Iterable[float | None]) -> str:
    measured = [share for share in shares if share is not None]
    return percent(sum(measured)) if measured else "–"


def changes(runs: Mapping[str, Inspection]) -> str:
    """In a sentence a run: which norms are others than in the first, and what that did."""
    labels = list(runs)
    if len(labels) < 2:
        return ""
    first = {report.name: report for report in runs[labels[0]]}
    items = []
    for label in labels[1:]:
        pairs = [(first[r.name], r) for r in runs[label] if r.name in first and first[r.name].kind != r.kind]
        items.append(f"<li><b>{escape(label)}</b>: {_sentence(pairs, len(runs[label]))}</li>")
    return f'<h2>What changed</h2><ul class="changes">{"".join(items)}</ul>'


def _sentence(pairs: list[tuple[LayerReport, LayerReport]], count: int) -> str:
    if not pairs:
        return f"none of {count} norms is of another kind."
    kinds = Counter((old.kind, new.kind) for old, new in pairs)
    which = ", ".join(
        f"{f'{n} ' if len(kinds) > 1 else ''}{escape(old)} → {escape(new)}" for (old, new), n in kinds.most_common()
    )
    measures = []
    for words, key in (("κ", "condition_after"), ("κ₉₀", "condition90_after"), ("|r|", "correlation_after")):
        ends = [[getattr(pair[side], key) for pair in pairs] for side in (0, 1)]
        known = [[value for value in values if math.isfinite(value)] for values in ends]
        if all(known):
            old, new = (statistics.median(values) for values in known)
            measures.append(f"{words} {number(old)} → <b>{number(new)}</b>")
    output = f" Their output, in the median: {', '.join(measures)}." if measures else ""
    return f"{len(pairs)} of {count} norms: {which}.{output}"


def condition_plot(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """A lane a norm, named, with the runs below each other on one axis; those that changed are picked out."""
    values = [v for reports in runs.values() for r in reports for v in (r.condition_before, r.condition_after)]
    axis = log_axis([1.0, *values])
    rows = []
    for index, name in enumerate(names, 1):
        here = by_label(runs, name)
        change = change_of(here)
        kind = change or escape(next(iter(here.values())).kind)
        rows.append(
            f'<li{" class=changed" if change else ""}><a href="#layer-{index}">{title_of(name)}</a>'
            f'<span class="kind" title="{kind}">{kind}</span>{lane(here, axis)}</li>'
        )
    order = f" Rows of a norm from the top: {', '.join(map(escape, runs))}." if len(runs) > 1 else ""
    return (
        f'<figure><div class="lanes">{scale(axis)}<ol>{"".join(rows)}</ol></div><figcaption>'
        '<span class="key input">input</span> <span class="key output">output</span> Condition number κ of every '
        f"norm's input and output, in the order they run, log scale; 1 is white. Dead directions are left out.{order}"
        "</figcaption></figure>"
    )


def advice(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """What is off in the set-up, each thing once, with the layers."""
    found: dict[tuple[str, str], list[str]] = {}
    for label, reports in runs.items():
        of_run: dict[str, list[str]] = {}
        for report in reports:
            link = f'<a href="#layer-{names.index(report.name) + 1}">{title_of(report.name)}</a>'
            for words in report.advice:
                of_run.setdefault(words, []).append(link)
        for words, links in of_run.items():
            found.setdefault((words, ", ".join(links)), []).append(label)
    items = []
    for (words, which), labels in found.items():
        run = f" <small>{escape(', '.join(labels))}</small>" if len(labels) < len(runs) else ""
        items.append(f"<li>{which}{run}: {escape(words)}</li>")
    if not items:
        return '<p class="fine">Nothing in the set-up of these norms is off.</p>'
    more = items[_ADVICE:]
    folded = f"<details><summary>{len(more)} more</summary><ul>{''.join(more)}</ul></details>" if more else ""
    return f'<div class="advice" role="note"><ul>{"".join(items[:_ADVICE])}</ul>{folded}</div>'


def _change(reports: Inspection, measure: str, pooled: Callable[[list[float]], float]) -> str:
    ends = []
    for side in ("before", "after"):
        values = [getattr(r, f"{measure}_{side}") for r in reports]
        known = [value for value in values if not math.isnan(value)]
        ends.append(number(pooled(known) if known else None))
    return " → ".join(ends)
