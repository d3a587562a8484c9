"""The HTML page as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from whitenorm._version import __version__
from whitenorm.diagnostics.page.layers import render_layers
from whitenorm.diagnostics.page.overview import render_advice, render_changes, render_conditions, render_tiles
from whitenorm.diagnostics.page.plots import heat_map_gradient
from whitenorm.diagnostics.page.table import render_table

if TYPE_CHECKING:
    from whitenorm.diagnostics.reports import Inspection

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>What the norms do to the features of one batch.</p></header>
<main>
<div class="cards">{tiles}</div>
{changes}
<h2>Conditioning</h2>
{conditions}
<h2>Advice</h2>
{advice}
<h2>All norms</h2>
{table}
<h2>Layer by layer</h2>
{layers}
</main>
<footer>whitenorm {version}.
Measured on one batch, on a random sample of at most 4096 values per channel.</footer>
</body>
</html>
"""


def html_page(inspections: Mapping[str, Inspection], title: str = "Norms of a model") -> str:
    """Return one HTML page that compares several inspections of a model, such as before and after a conversion.

    Layers of the same name are shown together. The page is self-contained: it opens without a network and runs no
    script.

    Args:
        inspections: maps each inspection's heading to the inspection.
        title: the page's title.

    Example::

        >>> model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        >>> before = whitenorm.diagnostics.inspect(model, torch.randn(64, 8))
        >>> after = whitenorm.diagnostics.inspect(whitenorm.convert_(model, "iternorm"), torch.randn(64, 8))
        >>> page = html_page({"BatchNorm": before, "IterNorm": after}, title="A small net")
        >>> "<title>A small net</title>" in page
        True
    """
    if not any(inspections.values()):
        raise ValueError(f"expected at least one inspection with a layer (got {len(inspections)} without)")
    # Each name once, in the order the norms run.
    names = list(dict.fromkeys(report.name for reports in inspections.values() for report in reports))
    style = (files("whitenorm.diagnostics.page") / "style.css").read_text(encoding="utf-8")
    return _PAGE.format(
        title=escape(title),
        style=f"{style}.ramp i {{ background: {heat_map_gradient()}; }}",
        tiles=render_tiles(inspections),
        changes=render_changes(inspections),
        conditions=render_conditions(inspections, names),
        advice=render_advice(inspections, names),
        table=render_table(inspections, names),
        layers=render_layers(inspections, names),
        version=__version__,
    )
