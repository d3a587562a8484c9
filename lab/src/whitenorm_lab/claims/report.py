"""``whitenorm-lab report``: the results of all experiments as a site, as a page of docs, and as the README's lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from whitenorm_lab.claims import markdown_page
from whitenorm_lab.claims.outcomes import gather, summary
from whitenorm_lab.claims.site import write_site
from whitenorm_lab.claims.verdict_snippets import write_found
from whitenorm_lab.markdown_sections import write_section
from whitenorm_lab.papers.not_built import NOT_BUILT
from whitenorm_lab.terminal import create_console


@dataclass
class Report:
    """Gather all results into one static HTML site: a page per paper, with figures, claims and verdicts.

    The folder holds all it needs: it opens without a network and without scripts.
    """

    results: Path = Path("results")
    """The folder that whitenorm-lab reproduce wrote to."""
    out: Path = Path("site")
    """The folder for the site; pages of an earlier one are replaced."""
    scale: Literal["smoke", "default", "paper"] = "default"
    """Which runs."""
    readme: Path | None = None
    """Also write how many claims held, in three lines, between the marks of this Markdown file, and what was found at
    marks as those of guides."""
    page: Path | None = None
    """Also write the table of claims, and what did not hold, between the marks of this one."""
    guides: tuple[Path, ...] = ()
    """Also write what was found here beside the papers' advice, at the marks of these."""


def main(args: list[str]) -> None:
    """Parse the arguments and run."""
    run(tyro.cli(Report, prog="whitenorm-lab report", args=args))


def run(options: Report) -> None:
    """Write the site, and the Markdown that is asked for."""
    console = create_console()
    outcomes = gather(options.results, options.scale)
    write_site(outcomes, options.scale, options.out)
    # All files before the first word: who reads only that, as head does, ends the command there.
    if options.readme is not None:
        write_section(
            options.readme, markdown_page.TALLY_START, markdown_page.TALLY_END, markdown_page.format_tally(outcomes)
        )
        write_found(options.readme, outcomes)
    if options.page is not None:
        text = markdown_page.format_page(outcomes, options.scale, options.page.parent)
        write_section(options.page, markdown_page.START, markdown_page.END, text)
    for path in options.guides:
        write_found(path, outcomes)
    console.print(summary(outcomes, NOT_BUILT), soft_wrap=not console.is_terminal)
    console.print(f"Site: {options.out / 'index.html'}", soft_wrap=True)
    for path in dict.fromkeys(filter(None, (options.readme, options.page, *options.guides))):
        console.print(f"Written: {path}", soft_wrap=True)
