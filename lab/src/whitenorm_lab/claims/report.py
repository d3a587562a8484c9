"""``whitenorm-lab report``: the results of all experiments as Markdown pages, and in README and the docs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import matplotlib.pyplot as plt
import tyro

from whitenorm_lab.claims import markdown_page
from whitenorm_lab.claims.outcomes import PAPERS, Outcome, load_outcomes, summarize
from whitenorm_lab.claims.pages import (
    GENERATED,
    format_index_page,
    format_paper_page,
    format_results_index,
    get_page_name,
)
from whitenorm_lab.claims.plots import save_figure
from whitenorm_lab.claims.verdict_snippets import update_verdicts
from whitenorm_lab.markdown_sections import write_section, write_text
from whitenorm_lab.papers.not_built import NOT_BUILT
from whitenorm_lab.terminal import create_console

INDEX = "README.md"


@dataclass
class Report:
    """Write all results as Markdown pages: an index, and one page per paper with figures, claims and verdicts.

    Raw values and figures are copied beside the pages, which any viewer of Markdown shows.
    """

    results: Path = Path("results")
    """The folder that whitenorm-lab reproduce wrote to."""
    out: Path = Path("report")
    """The folder for the pages; those of an earlier report are replaced."""
    scale: Literal["smoke", "default", "paper"] = "default"
    """Which runs to report."""
    readme: Path | None = None
    """Also write a summary of the verdicts between the tally marks of this Markdown file, and verdicts of experiments
    as in guides."""
    page: Path | None = None
    """Also write the table of experiments, and the claims that did not hold, between the marks of this file."""
    guides: tuple[Path, ...] = ()
    """Also write the verdicts of experiments beside the papers' advice, between the marks of these files."""
    index: bool = False
    """Also write README.md into the results folder, a table of the stored results."""


def main(args: list[str]) -> None:
    """Parse the arguments and run."""
    run(tyro.cli(Report, prog="whitenorm-lab report", args=args))


def run(options: Report) -> None:
    """Write the pages, and the other files that were requested."""
    console = create_console()
    outcomes = load_outcomes(options.results, options.scale)
    write_report(outcomes, options.scale, options.out)
    # Write all files before printing: printing into a closed pipe, such as head's, ends the command.
    if options.readme is not None:
        write_section(
            options.readme, markdown_page.TALLY_START, markdown_page.TALLY_END, markdown_page.format_tally(outcomes)
        )
        update_verdicts(options.readme, outcomes)
    if options.page is not None:
        text = markdown_page.format_page(outcomes, options.scale, options.page.parent)
        write_section(options.page, markdown_page.START, markdown_page.END, text)
    for path in options.guides:
        update_verdicts(path, outcomes)
    index = options.results / INDEX if options.index else None
    if index is not None:
        check_generated(index, "--results")
        write_text(index, format_results_index(outcomes, options.results))
    console.print(summarize(outcomes, NOT_BUILT), soft_wrap=not console.is_terminal)
    console.print(f"Pages: {options.out / INDEX}", soft_wrap=True)
    for path in dict.fromkeys(filter(None, (options.readme, options.page, *options.guides, index))):
        console.print(f"Written: {path}", soft_wrap=True)


def write_report(outcomes: list[Outcome], scale: str, folder: Path) -> None:
    """Write all files to a temporary folder and move them into place, the index last; keep any other files."""
    check_generated(folder / INDEX, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".new-") as name:
        new = Path(name)
        _write_files(outcomes, scale, new)
        files = [path.relative_to(new) for path in new.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path == Path(INDEX)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).replace(folder / path)


def check_generated(path: Path, flag: str) -> None:
    """Raise an error if a file exists that this command did not write."""
    if path.exists() and GENERATED not in path.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"expected no other {path.name} in {path.parent} (got one); choose another {flag}")


def draw_figure(outcome: Outcome, path: Path) -> None:
    """Draw the figure of an experiment from its stored runs."""
    if outcome.content is None:
        raise ValueError(f"expected results of {outcome.experiment.id} (got none)")
    figure = outcome.experiment.draw(outcome.content["runs"])
    save_figure(figure, path)
    plt.close(figure)


def select_paper(outcomes: Iterable[Outcome], paper: str) -> list[Outcome]:
    """Return the outcomes of a paper's experiments."""
    return [outcome for outcome in outcomes if outcome.experiment.paper == paper]


def _write_files(outcomes: list[Outcome], scale: str, folder: Path) -> None:
    for outcome in outcomes:
        files = folder / "results" / outcome.experiment.id
        files.mkdir(parents=True)
        if outcome.store.results.exists():
            shutil.copyfile(outcome.store.results, files / outcome.store.results.name)
        if outcome.content is not None:
            draw_figure(outcome, files / outcome.store.picture.name)
    for paper in PAPERS:
        text = format_paper_page(paper, select_paper(outcomes, paper), scale)
        (folder / get_page_name(paper)).write_text(text, encoding="utf-8")
    (folder / INDEX).write_text(format_index_page(outcomes, scale), encoding="utf-8")
