"""The page of a paper: figure beside claim, the paper's number, ours, and the verdict."""

from __future__ import annotations

import struct
from html import escape
from pathlib import Path
from typing import Any

from whitenorm.lab.reproduce.outcomes import PAPERS, Outcome, commit, duration, hardware, missing_of, summary, tally
from whitenorm.lab.reproduce.site.pieces import (
    counts,
    data_file,
    facts,
    figure_file,
    measured,
    page,
    page_file,
    prose,
    table,
    verdict,
    why,
)

_BESIDE = 1.9
"""A figure that is wider than this many times its height gets a row of its own."""


def paper_page(paper: str, outcomes: list[Outcome], scale: str) -> str:
    """A paper's experiments, one after the other."""
    title, link = PAPERS[paper]
    words = escape(summary(outcomes, missing_of(paper), verdicts=False))
    lead = f'<p><a href="{link}">The paper</a>. {words}</p>{counts(tally(outcomes))}'
    return page(page_file(paper), f"{title} ({paper})", lead, "\n".join(_experiment(o, scale) for o in outcomes))


def _experiment(outcome: Outcome, scale: str) -> str:
    experiment = outcome.experiment
    head = (
        f'<section class="experiment" id="{escape(experiment.id)}"><h2>{escape(experiment.title)}</h2>'
        f'<p class="where">{escape(f"{experiment.paper} {experiment.where}")}, <code>{escape(experiment.id)}</code></p>'
        f'<div class="setup">{prose(outcome.setup)}</div>'
    )
    if outcome.content is None:
        return f"{head}<p><strong>Not run</strong> at {escape(scale)} scale.</p></section>"
    rows = [
        [
            escape(claim["claim"]),
            escape(claim["paper"]),
            measured(claim["ours"]),
            verdict(claim["verdict"]),
            why(claim),
        ]
        for claim in outcome.claims
    ]
    claims = table("Claims", ["claim", "paper", "here", "verdict", "why"], rows)
    kind, figure = _figure(outcome)
    return f'{head}<div class="{kind}">{figure}{claims}</div>{_facts(outcome, outcome.content)}</section>'


def _figure(outcome: Outcome) -> tuple[str, str]:
    """Whether it stands beside the claims or above, and the figure."""
    if not outcome.store.picture.exists():
        return "above", "<p>There is no figure of this run.</p>"
    width, height = _size(outcome.store.picture)
    file = figure_file(outcome)
    caption = escape(
        f"{outcome.experiment.title}, as measured here: {outcome.experiment.paper} {outcome.experiment.where}"
    )
    figure = (
        f'<figure><a href="{file}"><img src="{file}" alt="{caption}" width="{width}" height="{height}"></a>'
        f"<figcaption>{caption}.</figcaption></figure>"
    )
    return ("above" if width > _BESIDE * height else "beside"), figure


def _size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its head."""
    with picture.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        raise OSError(f"expected {picture} to be a PNG (got other bytes); run whitenorm reproduce again")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def _facts(outcome: Outcome, content: dict[str, Any]) -> str:
    runs = content["runs"]
    parameters = ", ".join(f"{name} {value}" for name, value in content["parameters"].items())
    pairs = {
        "scale": escape(content["scale"]),
        "seeds": str(len({run.seed for run in runs})),
        "runs": str(len(runs)),
        "time": duration(content["seconds"]),
        "finished": escape(content["finished"][:10]),
        "commit": escape(commit(content)),
        "raw values": f'<a href="{data_file(outcome)}">{escape(outcome.experiment.id)}.json</a>',
        "parameters": escape(parameters),
        "machine": escape(hardware([content])),
    }
    return facts(pairs)
