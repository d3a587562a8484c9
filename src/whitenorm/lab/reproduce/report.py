"""``whitenorm report``: the results of all experiments as a site, as a page of docs, and as the README's lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whitenorm.lab.experiments.not_built import NOT_BUILT
from whitenorm.lab.marked import write_between
from whitenorm.lab.reproduce import claims
from whitenorm.lab.reproduce.found import write_found
from whitenorm.lab.reproduce.outcomes import gather, summary
from whitenorm.lab.reproduce.site import write_site
from whitenorm.lab.terminal import terminal


@dataclass
class Report:
    """Gather all results into one static HTML site: a page per paper, with figures, claims and verdicts.

    The folder holds all it needs: it opens without a network and without scripts.
    """

    results: Path = Path("results")
    """The folder that whitenorm reproduce wrote to."""
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


def run(options: Report) -> None:
    """Write the site, and the Markdown that is asked for."""
    console = terminal()
    outcomes = gather(options.results, options.scale)
    write_site(outcomes, options.scale, options.out)
    # All files before the first word: who reads only that, as head does, ends the command there.
    if options.readme is not None:
        write_between(options.readme, claims.TALLY_START, claims.TALLY_END, claims.lines(outcomes))
        write_found(options.readme, outcomes)
    if options.page is not None:
        text = claims.markdown(outcomes, options.scale, options.page.parent)
        write_between(options.page, claims.START, claims.END, text)
    for path in options.guides:
        write_found(path, outcomes)
    console.print(summary(outcomes, NOT_BUILT), soft_wrap=not console.is_terminal)
    console.print(f"Site: {options.out / 'index.html'}", soft_wrap=True)
    for path in dict.fromkeys(filter(None, (options.readme, options.page, *options.guides))):
        console.print(f"Written: {path}", soft_wrap=True)
