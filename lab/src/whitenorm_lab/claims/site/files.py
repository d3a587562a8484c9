"""The files of the site: each is whole or not there."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from whitenorm_lab.claims.outcomes import PAPERS, Outcome
from whitenorm_lab.claims.site.index import index_page
from whitenorm_lab.claims.site.paper import paper_page
from whitenorm_lab.claims.site.pieces import GENERATOR, data_file, figure_file, page_file

STYLES = (files("whitenorm.diagnostics.page") / "base.css", files("whitenorm_lab") / "assets" / "site.css")


def write_site(outcomes: list[Outcome], scale: str, folder: Path) -> None:
    """Make all files aside, then put them in place, the index last; what else is in the folder stays."""
    index = folder / "index.html"
    if index.exists() and GENERATOR not in index.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"expected a folder for the site (got {folder} with another index.html); choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".new-") as name:
        new = Path(name)
        _write(outcomes, scale, new)
        made = [path.relative_to(new) for path in new.rglob("*") if path.is_file()]
        for path in sorted(made, key=lambda path: path.name == "index.html"):
            (folder / path).parent.mkdir(exist_ok=True)
            (new / path).replace(folder / path)


def _write(outcomes: list[Outcome], scale: str, folder: Path) -> None:
    for outcome in outcomes:
        if outcome.earlier or outcome.content is not None:
            _copy(outcome.store.results, folder / data_file(outcome))
        if outcome.content is not None and outcome.store.picture.exists():
            _copy(outcome.store.picture, folder / figure_file(outcome))
    style = "\n".join(sheet.read_text(encoding="utf-8") for sheet in STYLES)
    (folder / "style.css").write_text(style, encoding="utf-8")
    for paper in PAPERS:
        mine = [outcome for outcome in outcomes if outcome.experiment.paper == paper]
        (folder / page_file(paper)).write_text(paper_page(paper, mine, scale), encoding="utf-8")
    (folder / "index.html").write_text(index_page(outcomes, scale), encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, target)
