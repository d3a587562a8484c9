"""The body of the page: spectra and correlations of each norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from whitenorm.diagnostics.page.plots import LogAxis, fit_log_axis, live_eigenvalues, render_heat_map, render_spectra
from whitenorm.diagnostics.page.text import format_change, format_condition, format_name, format_number, reports_by_run

if TYPE_CHECKING:
    from torch import Tensor

    from whitenorm.diagnostics.reports import Inspection, LayerReport

# Number of layers that are unfolded at first.
_NUM_OPEN = 2


def render_layers(runs: Mapping[str, Inspection], names: list[str]) -> str:
    """Return a foldable part per norm, with the runs side by side on one scale; norms that changed are open."""
    reports = {name: reports_by_run(runs, name) for name in names}
    changed = [name for name in names if format_change(reports[name])]
    open_names = set((changed or names)[:_NUM_OPEN])
    parts = []
    for index, name in enumerate(names, 1):
        axis = fit_log_axis(
            value
            for r in reports[name].values()
            for values, num_dead in ((r.spectrum_before, r.dead_before), (r.spectrum_after, r.dead_after))
            for value in live_eigenvalues(values, num_dead).values()
        )
        blocks = "".join(
            _render_report(label if len(runs) > 1 else "", report, axis) for label, report in reports[name].items()
        )
        # A link to the div inside opens the folded part around it.
        parts.append(
            f'<details class="layer"{" open" if name in open_names else ""}><summary><span class="index">{index}</span>'
            f" <b>{format_name(name)}</b> {_render_summary(reports[name])}</summary>"
            f'<div class="blocks" id="layer-{index}">{blocks}</div></details>'
        )
    return "".join(parts)


def _render_summary(reports: Mapping[str, LayerReport]) -> str:
    changes = "; ".join(
        f"{escape(r.kind)} κ {format_condition(r.condition_before)} → {format_condition(r.condition_after)}"
        for r in reports.values()
    )
    flag = ' <span class="flag">advice</span>' if any(r.advice for r in reports.values()) else ""
    flag += ' <span class="flag new">changed</span>' if format_change(reports) else ""
    return f'<span class="change">{changes}</span>{flag}'


def _render_report(label: str, report: LayerReport, axis: LogAxis) -> str:
    name = (report.name or "the model") + (f", {label}" if label else "")
    heading = f"{escape(label)}: {escape(report.kind)}" if label else escape(report.kind)
    advice = "".join(f"<li>{escape(text)}</li>" for text in report.advice)
    top = f"<section><h3>{heading}</h3>" + (f'<ul class="advice">{advice}</ul>' if advice else "")
    if not report.spectrum_before:
        return f"{top}<p>Its features could not be measured on this batch.</p></section>"
    spectra = render_spectra(report, axis, f"Eigenvalues of input and output of {name}, log scale")
    num_shown = len(report.correlations_before)
    channels = "all" if num_shown == report.width else f"the first {num_shown} of"
    return (
        f'{top}<figure>{spectra}<figcaption><span class="key input">input</span> <span class="key output">output</span>'
        f" Eigenvalues of the covariance, largest first.{_describe_omitted(report)}</figcaption></figure>"
        '<figure><div class="heats">'
        + _render_correlations(report.correlations_before, report.correlation_before, "Input", name)
        + _render_correlations(report.correlations_after, report.correlation_after, "Output", name)
        + '</div><figcaption><span class="ramp"><span>−1</span><i></i><span>1</span></span> Correlations of '
        f"{channels} {report.width} channels.</figcaption></figure></section>"
    )


def _render_correlations(matrix: Tensor, mean: float, side: str, name: str) -> str:
    alt = f"Correlations of the {side.lower()} of {name}: mean absolute correlation {format_number(mean)}"
    caption = f"{side}, mean |r| {format_number(mean)}"
    return f'<div><img src="{render_heat_map(matrix)}" alt="{escape(alt)}"><span>{caption}</span></div>'


def _describe_omitted(report: LayerReport) -> str:
    text = ""
    for side, values, num_dead in (
        ("input", report.spectrum_before, report.dead_before),
        ("output", report.spectrum_after, report.dead_after),
    ):
        num_infinite = sum(not math.isfinite(value) for value in values)
        if num_dead:
            text += f" {num_dead} of {len(values)} of the {side} are zero up to rounding, and not drawn."
        if num_infinite:
            text += f" {num_infinite} of {len(values)} of the {side} are not finite."
    return text
