"""mkdocs hook for stored results.

It adds one page per paper, ``claims/PAPER.md``, as ``whitenorm-lab report`` writes it, with figures drawn from the
stored runs, and copies of the results and benchmarks, which are outside of ``docs/``. On all other pages, links to
``results/ID`` and the names of experiments become links to the papers' pages.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import whitenorm_lab
from whitenorm_lab.claims.outcomes import PAPERS, Outcome, load_outcomes
from whitenorm_lab.claims.pages import format_paper_page, get_page_name
from whitenorm_lab.claims.report import draw_figure, select_paper
from whitenorm_lab.papers import EXPERIMENTS

SCALE = "default"
# Classes of docs/assets/site.css.
_CLASSES = {"claims.md": "dense", "benchmarks.md": "dense", "gpu.md": "dense"}
_CLASSES |= {f"claims/{get_page_name(paper)}": "paper" for paper in PAPERS}
_LINK = re.compile(r"(?<=\]\()(?:\.\./)+((?:lab|benchmarks)/results/[^)\s]+)(?=\))")
_NAME = re.compile(rf"(?<!\[)`({'|'.join(sorted(EXPERIMENTS, key=len, reverse=True))})`")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the papers, figures, and stored results."""
    root = Path(config.config_file_path).parent

    def add_copy(path: str, source: Path) -> None:
        files.append(File.generated(config, path, abs_src_path=str(source)))

    for source in sorted((root / "benchmarks/results").glob("*.*")):
        if source.suffix != ".md":
            add_copy(f"benchmarks/results/{source.name}", source)
    outcomes = load_outcomes(root / "lab/results", SCALE)
    for outcome in outcomes:
        if outcome.store.results.exists():
            add_copy(outcome.store.results.relative_to(root).as_posix(), outcome.store.results)
        if outcome.content is not None:
            figure = draw_figure_once(outcome, root / "build/figures")
            add_copy(outcome.store.picture.relative_to(root).as_posix(), figure)
    for paper in PAPERS:
        text = format_paper_page(
            paper, select_paper(outcomes, paper), SCALE, files="../lab/results", index="../claims.md"
        )
        files.append(File.generated(config, f"claims/{get_page_name(paper)}", content=text))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link to the papers' pages."""
    source = page.file.src_uri
    if _CLASSES.get(source) == "paper":
        return markdown
    folder = posixpath.dirname(source) or "."
    text = _LINK.sub(lambda match: posixpath.relpath(_find_page(match[1]), folder), markdown)
    return _NAME.sub(
        lambda match: f"[{match[0]}]({posixpath.relpath(_find_page(f'lab/results/{match[1]}'), folder)})", text
    )


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Set the class of pages with wide tables."""
    name = _CLASSES.get(page.file.src_uri)
    return f'<div class="{name}">{html}</div>' if name else html


def draw_figure_once(outcome: Outcome, folder: Path) -> Path:
    """Draw the figure of an experiment, unless it was drawn from the same runs by the same code."""
    digest = hashlib.sha256(outcome.store.results.read_bytes() + _hash_code()).hexdigest()[:16]
    path = folder / f"{outcome.experiment.id}-{digest}.png"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Two builds at once must not see each other's unfinished files.
        with TemporaryDirectory(dir=folder) as name:
            draw_figure(outcome, Path(name) / path.name)
            (Path(name) / path.name).replace(path)
    return path


@cache
def _hash_code() -> bytes:
    """Hash matplotlib's version and all code of the lab, any of which may change a figure."""
    digest = hashlib.sha256(matplotlib.__version__.encode())
    for path in sorted(Path(whitenorm_lab.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _find_page(path: str) -> str:
    """Map the folder of an experiment to its section of a paper's page; other paths stay."""
    name = path.strip("/").removeprefix("lab/results/")
    return f"claims/{get_page_name(EXPERIMENTS[name].paper)}#{name}" if name in EXPERIMENTS else path
