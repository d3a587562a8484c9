"""The page as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from whitenorm._version import __version__
from whitenorm.diagnostics.page.heat import gradient
from whitenorm.diagnostics.page.layers import layers
from whitenorm.diagnostics.page.overview import advice, changes, condition_plot, tiles
from whitenorm.diagnostics.page.table import table

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
<header><h1>{title}</h1><p>What its norms do to the features of one batch.</p></header>
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
Measured on one batch; where a channel has many values, on a random sample of them.</footer>
</body>
</html>
"""


def html_page(inspections: Mapping[str, Inspection], title: str = "Norms of a model") -> str:
    """Several inspections of a model, such as before and after a conversion, on one page of HTML.

    Layers of the same name are shown together. The page holds all it needs: it opens without a network, and runs no
    script.

    Args:
        inspections: by the words that head each of them.
        title: of the page.

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
    # In the order they run; each name once.
    names = list(dict.fromkeys(report.name for reports in inspections.values() for report in reports))
    # base.css is what all pages share, those of the lab too.
    sheets = [files("whitenorm.diagnostics.page") / name for name in ("base.css", "style.css")]
    style = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    return _PAGE.format(
        title=escape(title),
        style=f"{style}.ramp i {{ background: {gradient()}; }}",
        tiles=tiles(inspections),
        changes=changes(inspections),
        conditions=condition_plot(inspections, names),
        advice=advice(inspections, names),
        table=table(inspections, names),
        layers=layers(inspections, names),
        version=__version__,
    )
