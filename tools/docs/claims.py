"""Stored results in the documentation: a hook of mkdocs.

A paper's experiments become a page ``claims/PAPER.md``, with the html that ``whitenorm-lab report`` makes for its own
site,
and figures and raw values beside it. On all pages, links to ``results/ID``, and names of experiments, lead there; links
to files of ``results/`` and ``benchmarks/results/``, which are outside of docs/, lead to copies.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from whitenorm_lab.claims.markdown_page import escape_markdown
from whitenorm_lab.claims.outcomes import PAPERS, Outcome, gather
from whitenorm_lab.claims.site import STYLES, PaperParts, data_file, figure_file, page_file, paper_parts
from whitenorm_lab.papers import EXPERIMENTS

SCALE = "default"
STYLE = "claims/papers.css"
_DENSE = ("claims.md", "benchmarks.md", "gpu.md")
_RULE = "how-a-claim-is-judged"
_ADDRESS = re.compile(r'(?<= )(href|src)="([^":#]+)(#[^"]*)?"')
_LINK = re.compile(r"(?<=\]\()(?:\.\./)+((?:lab|benchmarks)/results/[^)\s]+)(?=\))")
_NAME = re.compile(rf"(?<!\[)`({'|'.join(sorted(EXPERIMENTS, key=len, reverse=True))})`")
# The site's rules hold for its own html alone; their sizes are of a root of 16 pixels, and the theme's is larger.
_SCOPED = Path(__file__).with_name("papers.css")


def on_config(config: MkDocsConfig) -> None:
    """Its style is one of the site's."""
    if STYLE not in config.extra_css:
        config.extra_css.append(STYLE)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add pages, figures, raw values and the style."""
    root = Path(config.config_file_path).parent
    outcomes = gather(root / "lab" / "results", SCALE)
    files.append(File.generated(config, STYLE, content=style()))
    for path in sorted((root / "benchmarks/results").glob("*.*")):
        if path.suffix != ".md":
            files.append(File.generated(config, f"benchmarks/results/{path.name}", abs_src_path=str(path)))
    addresses = {"index.html": _found(files, "claims.md")}
    for outcome in outcomes:
        for name, path in ((data_file(outcome), outcome.store.results), (figure_file(outcome), outcome.store.picture)):
            if path.exists():
                source = path.relative_to(root).as_posix()
                addresses[name] = File.generated(config, source, abs_src_path=str(path))
                files.append(addresses[name])
    # All have addresses before the first is written.
    for paper in PAPERS:
        addresses[page_file(paper)] = File.generated(config, source_of(paper), content="")
        files.append(addresses[page_file(paper)])
    for paper in PAPERS:
        page = addresses[page_file(paper)]
        mine = [outcome for outcome in outcomes if outcome.experiment.paper == paper]
        page.content_string = _page(paper, mine, page, addresses)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links and names lead to the pages above."""
    source = page.file.src_uri
    if source in map(source_of, PAPERS):
        return markdown
    folder = posixpath.dirname(source)
    linked = _LINK.sub(lambda match: posixpath.relpath(_target(match[1]), folder or "."), markdown)
    return _NAME.sub(
        lambda match: f"[{match[0]}]({posixpath.relpath(_target(f'lab/results/{match[1]}'), folder or '.')})", linked
    )


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Wide tables of numbers are set closer than the theme does."""
    return f'<div class="dense">{html}</div>' if page.file.src_uri in _DENSE else html


def source_of(paper: str) -> str:
    """The page of a paper among the pages' sources."""
    return f"claims/{paper.lower()}.md"


def style() -> str:
    """The site's rules, nested in a class, and those that make them fit the theme."""
    rules = "\n".join(sheet.read_text(encoding="utf-8") for sheet in STYLES)
    in_pixels = re.sub(r"(\d*\.?\d+)rem", lambda match: f"{16 * float(match[1]):g}px", rules)
    return f".papers {{\n{in_pixels}}}\n{_SCOPED.read_text(encoding='utf-8')}"


def _target(path: str) -> str:
    """Where a file of the repository, or the folder of an experiment, is among the pages' sources."""
    name = path.strip("/").removeprefix("lab/results/")
    return f"{source_of(EXPERIMENTS[name].paper)}#{name}" if name in EXPERIMENTS else path


def _page(paper: str, outcomes: list[Outcome], page: File, addresses: dict[str, File]) -> str:
    """Titles as Markdown, for the table of contents and the search, and html between them."""
    parts: PaperParts = paper_parts(paper, outcomes, SCALE)

    def moved(match: re.Match[str]) -> str:
        target, place = addresses.get(match[2]), match[3] or ""
        if target is None:
            raise ValueError(f"expected a link to a file of the site in {page.src_uri} (got {match[0]})")
        if target is page:
            return f'{match[1]}="{place}"'
        place = f"#{_RULE}" if place == "#rule" else place
        return f'{match[1]}="{get_relative_url(target.url, page.url)}{place}"'

    def block(html: str) -> str:
        return f'<div class="papers">{_ADDRESS.sub(moved, html)}</div>'

    text = [f"# {escape_markdown(parts.title)}", block(parts.lead)]
    for name, title, html in parts.sections:
        text += [f"## {escape_markdown(title)} {{#{name}}}", block(html)]
    return "\n\n".join(text)


def _found(files: Files, source: str) -> File:
    file = files.get_file_from_path(source)
    if file is None:
        raise ValueError(f"expected docs/{source}, which the papers' pages lead to (got no such page)")
    return file
