"""The body of the page: each norm's spectra and correlations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from whitenorm.diagnostics.page.heat import heat_map
from whitenorm.diagnostics.page.plots import LogAxis, live, log_axis, spectra
from whitenorm.diagnostics.page.text import change_of, condition, number, title_of

if TYPE_CHECKING:
    from torch import Tensor

    from whitenorm.diagnostics.reports import Inspection, LayerReport

# Layers that are open at first.
_OPEN = 2


def layers(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """A foldable part a norm, with the runs beside each other on one scale; those that changed are open first."""
    found = {name: by_label(runs, name) for name in names}
    changed = [name for name in names if change_of(found[name])]
    is_open = set((changed or names)[:_OPEN])
    parts = []
    for index, name in enumerate(names, 1):
        here = found[name]
        axis = log_axis(
            value
            for r in here.values()
            for values, dead in ((r.spectrum_before, r.dead_before), (r.spectrum_after, r.dead_after))
            for value in live(values, dead).values()
        )
        blocks = "".join(_block(label if len(runs) > 1 else "", report, axis) for label, report in here.items())
        # A link to the part inside opens the closed one around it.
        parts.append(
            f'<details class="layer"{" open" if name in is_open else ""}><summary><span class="index">{index}</span> '
            f"<b>{title_of(name)}</b> {_summary(here)}</summary>"
            f'<div class="blocks" id="layer-{index}">{blocks}</div></details>'
        )
    return "".join(parts)


def by_label(runs: Mapping[str, Inspection], name: str) -> dict[str, LayerReport]:
    """The reports of one norm, by run."""
    return {label: report for label, reports in runs.items() for report in reports if report.name == name}


def _summary(here: Mapping[str, LayerReport]) -> str:
    changes = "; ".join(
        f"{escape(r.kind)} κ {condition(r.condition_before)} → {condition(r.condition_after)}" for r in here.values()
    )
    flag = ' <span class="flag">advice</span>' if any(r.advice for r in here.values()) else ""
    flag += ' <span class="flag new">changed</span>' if change_of(here) else ""
    return f'<span class="change">{changes}</span>{flag}'


def _block(label: str, report: LayerReport, axis: LogAxis) -> str:
    name = report.name or "the model"
    run = f", {label}" if label else ""
    heading = f"{escape(label)}: {escape(report.kind)}" if label else escape(report.kind)
    words = "".join(f"<li>{escape(words)}</li>" for words in report.advice)
    top = f"<section><h3>{heading}</h3>" + (f'<ul class="advice">{words}</ul>' if words else "")
    if not report.spectrum_before:
        return f"{top}<p>Its features could not be measured at this batch.</p></section>"
    return (
        f"{top}<figure>{spectra(report, axis, f'Eigenvalues of input and output of {name}{run}, log scale')}"
        "<figcaption>"
        f'<span class="key input">input</span> <span class="key output">output</span> Eigenvalues of the covariance, '
        f'from the largest.{_not_drawn(report)}</figcaption></figure><figure><div class="heats">'
        + _heat(report.correlations_before, report.correlation_before, "Input", f"{name}{run}")
        + _heat(report.correlations_after, report.correlation_after, "Output", f"{name}{run}")
        + '</div><figcaption><span class="ramp"><span>−1</span><i></i><span>1</span></span> Correlations of '
        f"{_which(report)}.</figcaption></figure></section>"
    )


def _heat(matrix: Tensor, mean: float, side: str, name: str) -> str:
    alt = f"Correlations of the {side.lower()} of {name}: mean absolute correlation {number(mean)}"
    return f'<div><img src="{heat_map(matrix)}" alt="{escape(alt)}"><span>{side}, mean |r| {number(mean)}</span></div>'


def _not_drawn(report: LayerReport) -> str:
    words = ""
    for side, values, dead in (
        ("input", report.spectrum_before, report.dead_before),
        ("output", report.spectrum_after, report.dead_after),
    ):
        broken = sum(not math.isfinite(value) for value in values)
        if dead:
            words += f" {dead} of {len(values)} of the {side} are zero but for rounding, and not drawn."
        if broken:
            words += f" {broken} of {len(values)} of the {side} are not finite."
    return words


def _which(report: LayerReport) -> str:
    shown = len(report.correlations_before)
    return f"all {shown} channels" if shown == report.width else f"the first {shown} of {report.width} channels"
