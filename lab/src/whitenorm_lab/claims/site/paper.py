"""The page of a paper: of each experiment the figure, and below it the paper's numbers, ours, and the verdicts."""

from __future__ import annotations

import struct
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from whitenorm_lab.claims.outcomes import (
    PAPERS,
    Outcome,
    commit,
    hardware,
    missing_of,
    rule_of,
    size,
    summary,
    tally,
)
from whitenorm_lab.claims.site.claims import claims, short_of
from whitenorm_lab.claims.site.pieces import (
    bars,
    counts,
    data_file,
    facts,
    figure_file,
    page,
    page_file,
    prose,
    table,
)
from whitenorm_lab.papers.not_built import NotBuilt

_WIDE = 1.6
"""A figure that is wider than this many times its height has panels beside each other."""


class Section(NamedTuple):
    """An experiment, or what has none: html below its title."""

    id: str
    title: str
    html: str


class PaperParts(NamedTuple):
    """A page without what is around it; links in its html are those of the site."""

    title: str
    lead: str
    sections: list[Section]


def paper_parts(paper: str, outcomes: list[Outcome], scale: str) -> PaperParts:
    """A paper's experiments, one after the other, and what of it has none."""
    title, link = PAPERS[paper]
    missing = missing_of(paper)
    words = escape(summary(outcomes, missing, verdicts=False))
    lead = f'<p><a href="{link}">The paper</a>. {words}</p>{counts(tally(outcomes))}{bars(outcomes)}'
    sections = [_experiment(outcome, scale) for outcome in outcomes]
    return PaperParts(f"{title} ({paper})", lead, sections + ([_not_built(missing)] if missing else []))


def paper_page(paper: str, outcomes: list[Outcome], scale: str) -> str:
    """The same as a page of the site."""
    parts = paper_parts(paper, outcomes, scale)
    body = "\n".join(
        f'<section class="experiment" id="{escape(name)}"><h2>{escape(title)}</h2>{html}</section>'
        for name, title, html in parts.sections
    )
    return page(page_file(paper), parts.title, parts.lead, body)


def _experiment(outcome: Outcome, scale: str) -> Section:
    experiment = outcome.experiment
    what, _, setup = outcome.setup.strip().partition("\n\n")
    head = (
        f'<p class="where">{escape(f"{experiment.paper} {experiment.where}")}, <code>{escape(experiment.id)}</code></p>'
        f"{prose(what)}"
        f"<details><summary>Set-up of the paper, and here</summary>{prose(setup)}</details>"
    )
    if outcome.content is None:
        why = _not_run(outcome, scale)
        body = f"<p><strong>Not run</strong> {why}.</p>{claims(outcome, outcome.claims)}"
    else:
        body = (
            f'{_figure(outcome, outcome.content)}<div id="{escape(experiment.id)}-scale">{short_of(outcome)}</div>'
            f"{claims(outcome, outcome.claims)}{_facts(outcome, outcome.content)}"
        )
    return Section(experiment.id, experiment.title, head + body)


def _not_run(outcome: Outcome, scale: str) -> str:
    if not outcome.earlier:
        return f"at {escape(scale)} scale"
    link = f'<a href="{data_file(outcome)}">there are results</a>'
    return f"at {escape(scale)} scale with this set-up; of an earlier one, which was changed, {link}"


def _figure(outcome: Outcome, content: dict[str, Any]) -> str:
    """With the size of the run below it."""
    experiment = outcome.experiment
    ran = f"<figcaption>{escape(size(content))}</figcaption>"
    if not outcome.store.picture.exists():
        return f"<figure><p>There is no figure of this run.</p>{ran}</figure>"
    width, height = _size(outcome.store.picture)
    file = figure_file(outcome)
    words = escape(f"{experiment.title}, as measured here: {experiment.paper} {experiment.where}")
    kind = ' class="wide"' if width > _WIDE * height else ""
    image = f'<img src="{file}" alt="{words}" width="{width}" height="{height}">'
    return f'<figure{kind}><a href="{file}">{image}</a>{ran}</figure>'


def _size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its head."""
    with picture.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        raise OSError(f"expected {picture} to be a PNG (got other bytes); run whitenorm-lab reproduce again")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def _facts(outcome: Outcome, content: dict[str, Any]) -> str:
    pairs = {
        "judged by": f'<a href="index.html#rule">{escape(rule_of(content).words)}</a>',
        "finished": escape(content["finished"][:10]),
        "commit": escape(commit(content)),
        "raw values": f'<a href="{data_file(outcome)}">{escape(outcome.experiment.id)}.json</a>',
        "machine": escape(hardware([content])),
    }
    return facts(pairs)


def _not_built(missing: list[NotBuilt]) -> Section:
    rows = [[escape(one.title), escape(f"{one.paper} {one.where}"), escape(one.why)] for one in missing]
    text = "<p>What the paper reports and no experiment here runs.</p>"
    return Section("not-built", "Not built", text + table("Not built", ["what", "paper", "why not"], rows))
