"""Numbers and names as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection, LayerReport

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_power_of_ten(exponent: int) -> str:
    """Return ``10⁻³``, but ``1`` and ``10`` for the exponents 0 and 1."""
    return {0: "1", 1: "10"}.get(exponent, "10" + str(exponent).translate(_SUPERSCRIPTS))


def format_number(value: float | None) -> str:
    """Return three digits; ``1.23×10⁵`` where plain digits would be long."""
    if value is None:
        return "–"
    if value < 0:
        return f"−{format_number(-value)}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    if isinstance(value, int):
        return str(value)
    # The exponent after rounding, which for 999.9 is 3.
    digits, exponent = f"{value:.2e}".split("e")
    if -3 <= int(exponent) < 4:
        return f"{value:.3g}" if int(exponent) < 3 else f"{value:.0f}"
    return f"{digits}×{format_power_of_ten(int(exponent))}"


def format_condition(value: float | None) -> str:
    """Return a condition number; a dash for NaN, where all directions are dead."""
    return format_number(None if value is None or math.isnan(value) else value)


def format_percent(value: float | None) -> str:
    return format_number(value) if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def format_name(name: str) -> str:
    """Return a layer's name, escaped; a model that is a norm itself has none."""
    return escape(name) if name else "(the model itself)"


def reports_by_run(runs: Mapping[str, Inspection], name: str) -> dict[str, LayerReport]:
    """Return the reports of the norm of this name, by run."""
    return {label: report for label, reports in runs.items() for report in reports if report.name == name}


def format_change(reports: Mapping[str, LayerReport]) -> str:
    """Return ``BatchNorm2d → IterNorm``, escaped, if a norm's kind differs between runs; otherwise an empty string."""
    kinds = list(dict.fromkeys(report.kind for report in reports.values()))
    return escape(" → ".join(kinds)) if len(kinds) > 1 else ""
