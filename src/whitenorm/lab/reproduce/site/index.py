"""The first page: what was run, what came of it, by which rule, on what."""

from __future__ import annotations

from html import escape

from whitenorm.lab.experiments.not_built import NOT_BUILT
from whitenorm.lab.reproduce import verdicts
from whitenorm.lab.reproduce.outcomes import (
    PAPERS,
    VERDICTS,
    Outcome,
    commit,
    duration,
    hardware,
    missing_of,
    summary,
    tally,
)
from whitenorm.lab.reproduce.site.pieces import address, counts, facts, measured, page, page_file, prose, table, why


def index_page(outcomes: list[Outcome], scale: str) -> str:
    """What was run, what came of it, by which rule, on what."""
    cards = "".join(_card(paper, [o for o in outcomes if o.experiment.paper == paper]) for paper in PAPERS)
    body = f"""<div class="cards">{cards}</div>
<h2>Experiments</h2>
{table("Claims of each experiment", ["experiment", "paper", *VERDICTS, "time"], [_row(o) for o in outcomes])}
<h2>Claims that did not hold</h2>
{_failures(outcomes)}
<h2>How a claim is judged</h2>
{prose(verdicts.__doc__ or "")}
<h2>What it was run on</h2>
{_runs(outcomes, scale)}"""
    lead = f"<p>{escape(summary(outcomes, NOT_BUILT))}</p>"
    return page("index.html", "Do the papers’ claims hold here?", lead, body)


def _card(paper: str, outcomes: list[Outcome]) -> str:
    return (
        f'<section class="card"><h2><a href="{page_file(paper)}">{escape(PAPERS[paper].title)} ({escape(paper)})</a>'
        f"</h2><p>{escape(summary(outcomes, missing_of(paper), verdicts=False))}</p>{counts(tally(outcomes))}</section>"
    )


def _row(outcome: Outcome) -> list[str]:
    experiment = outcome.experiment
    first = f'<a href="{address(outcome)}">{escape(experiment.title)}</a> <code>{escape(experiment.id)}</code>'
    cells = [first, escape(f"{experiment.paper} {experiment.where}")]
    if outcome.content is None:
        return [*cells, *["–"] * len(VERDICTS), "not run"]
    return [*cells, *map(str, tally([outcome]).values()), duration(outcome.content["seconds"])]


def _failures(outcomes: list[Outcome]) -> str:
    rows = [
        [
            f'<a href="{address(outcome)}">{escape(claim["claim"])}</a>',
            escape(f"{outcome.experiment.paper} {outcome.experiment.where}: {claim['paper']}"),
            measured(claim["ours"]),
            why(claim),
        ]
        for outcome in outcomes
        for claim in outcome.claims
        if claim["verdict"] == "not held"
    ]
    if not rows:
        return "<p>No claim was found not to hold.</p>"
    return table("Claims that did not hold", ["claim", "paper", "here", "why"], rows)


def _runs(outcomes: list[Outcome], scale: str) -> str:
    contents = [outcome.content for outcome in outcomes if outcome.content is not None]
    dates = sorted(content["finished"][:10] for content in contents)
    pairs = {
        "scale": scale,
        "time in all": duration(sum(content["seconds"] for content in contents)),
        "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "machine": hardware(contents),
        "commit": "; ".join(dict.fromkeys(map(commit, contents))),
    }
    return facts({name: escape(value) for name, value in pairs.items()})
