"""Formulas as MathML, which browsers show without scripts and without a network."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# As pymdownx.arithmatex leaves them.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def as_mathml(page: str) -> str:
    r"""A page's HTML with its formulas converted.

    >>> as_mathml(r'<span class="arithmatex">\(x^2\)</span>').count("<msup>")
    1
    """
    return _FORMULA.sub(_converted, page)


def _converted(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    # A long formula scrolls by itself, so that the page does not.
    return f'<div class="formula">{formula}</div>' if display == "block" else formula
