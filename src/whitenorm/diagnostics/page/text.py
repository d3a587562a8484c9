"""Numbers and names as a reader of the page sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import LayerReport

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(exponent: int) -> str:
    """``10⁻³``; one and ten as themselves."""
    return {0: "1", 1: "10"}.get(exponent, "10" + str(exponent).translate(_RAISED))


def number(value: float | None) -> str:
    """Three digits; ``1.23×10⁵`` where plain digits would be long."""
    if value is None:
        return "–"
    if value < 0:
        return f"−{number(-value)}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    if isinstance(value, int):
        return str(value)
    # The exponent after rounding: of 999.9 it is 3.
    digits, exponent = f"{value:.2e}".split("e")
    if -3 <= int(exponent) < 4:
        return f"{value:.3g}" if int(exponent) < 3 else f"{value:.0f}"
    return f"{digits}×{power_of_ten(int(exponent))}"


def condition(value: float | None) -> str:
    """A condition number, of which there is none where no direction is alive."""
    return number(None if value is None or math.isnan(value) else value)


def percent(value: float | None) -> str:
    """A share."""
    return number(value) if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def title_of(name: str) -> str:
    """A layer's name, escaped; a model that is a norm itself has none."""
    return escape(name) if name else "(the model itself)"


def change_of(here: Mapping[str, LayerReport]) -> str:
    """``BatchNorm2d → IterNorm``, escaped, where the runs have different kinds of one norm; empty where they do not."""
    kinds = list(dict.fromkeys(report.kind for report in here.values()))
    return escape(" → ".join(kinds)) if len(kinds) > 1 else ""
