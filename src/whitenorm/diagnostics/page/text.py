"""Numbers and names as a reader of the page sees them."""

from __future__ import annotations

import math
from html import escape

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


def percent(value: float | None) -> str:
    """A share."""
    return number(value) if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def title_of(name: str) -> str:
    """A layer's name, escaped; a model that is a norm itself has none."""
    return escape(name) if name else "(the model itself)"
