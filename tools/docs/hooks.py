"""mkdocs hooks: the version in the footer, CHANGELOG and CONTRIBUTING as pages, and formulas as MathML."""

from __future__ import annotations

import re
import runpy
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
# The output of pymdownx.arithmatex with generic: true.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the footer of every page."""
    version = runpy.run_path(str(ROOT / "src/whitenorm/_version.py"))["__version__"]
    config.copyright = f"whitenorm {version}, MIT licence"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from the root of the repository; their links to ``docs/`` become links within the site."""
    for name in _ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace("](README.md", "](index.md")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_content(html: str, **kwargs: Any) -> str:
    """Convert the formulas of a page to MathML, which browsers show without scripts or a network."""
    return convert_formulas(html)


def convert_formulas(html: str) -> str:
    r"""Replace arithmatex's LaTeX in a page's HTML by MathML.

    >>> convert_formulas(r'<span class="arithmatex">\(x^2\)</span>').count("<msup>")
    1
    """
    return _FORMULA.sub(_convert_formula, html)


def _convert_formula(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(unescape(match[3]).strip(), display=display)
    # A box that scrolls keeps long formulas from widening the page.
    return f'<div class="formula">{formula}</div>' if display == "block" else formula
