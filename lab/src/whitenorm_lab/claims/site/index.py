"""The first page: what was run, what came of it, by which rule, on what."""

from __future__ import annotations

from html import escape

from whitenorm_lab.claims import verdicts
from whitenorm_lab.claims.outcomes import (
    PAPERS,
    VERDICTS,
    Outcome,
    commit,
    duration,
    hardware,
    judged_by,
    missing_of,
    number,
    summary,
    tally,
)
from whitenorm_lab.claims.site.claims import claims, short_of
from whitenorm_lab.claims.site.pieces import (
    address,
    bars,
    counts,
    facts,
    page,
    page_file,
    prose,
    sign,
    table,
)
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt


def index_page(outcomes: list[Outcome], scale: str) -> str:
    """What was run, what came of it, by which rule, on what."""
    papers = {paper: [o for o in outcomes if o.experiment.paper == paper] for paper in PAPERS}
    cards = "".join(_card(paper, mine) for paper, mine in papers.items())
    rows = [row for paper, mine in papers.items() for row in (*map(_row, mine), *map(_missing, missing_of(paper)))]
    body = f"""<div class="cards">{cards}</div>
<h2>Experiments</h2>
{table("Claims of each experiment", ["experiment", "paper", *VERDICTS, "time"], rows, "compact")}
<h2>What did not hold</h2>
{_failures(outcomes)}
<h2 id="rule">How a claim is judged</h2>
{prose(verdicts.__doc__ or "")}
{_rules(outcomes)}
<h2>What it was run on</h2>
{_runs(outcomes, scale)}"""
    lead = f"<p>{escape(summary(outcomes, NOT_BUILT))}</p>"
    return page("index.html", "Do the papers’ claims hold here?", lead, body)


def _card(paper: str, outcomes: list[Outcome]) -> str:
    return (
        f'<section class="card"><h2><a href="{page_file(paper)}">{escape(PAPERS[paper].title)} ({escape(paper)})</a>'
        f"</h2><p>{escape(summary(outcomes, missing_of(paper), verdicts=False))}</p>{counts(tally(outcomes))}"
        f"{bars(outcomes)}</section>"
    )


def _row(outcome: Outcome) -> list[str]:
    experiment = outcome.experiment
    first = f'<a href="{address(outcome)}">{escape(experiment.title)}</a> <code>{escape(experiment.id)}</code>'
    cells = [first + bars([outcome]), escape(f"{experiment.paper} {experiment.where}")]
    found = [
        f'{sign(name)}<span class="{"some" if count else "zero"}">{count}</span>'
        for name, count in tally([outcome]).items()
    ]
    return [*cells, *found, "not run" if outcome.content is None else duration(outcome.content["seconds"])]


def _missing(missing: NotBuilt) -> list[str]:
    first = (
        f'<a href="{page_file(missing.paper)}#not-built">{escape(missing.title)}</a>'
        f'<p class="soft">{escape(missing.why)}</p>'
    )
    return [first, escape(f"{missing.paper} {missing.where}"), *_NONE, "not built"]


_NONE = ['<span class="zero">–</span>'] * len(VERDICTS)


def _failures(outcomes: list[Outcome]) -> str:
    html = []
    for outcome in outcomes:
        failed = [claim for claim in outcome.claims if claim["verdict"] == "not held"]
        if failed:
            experiment = outcome.experiment
            html.append(
                f"<details><summary>{escape(experiment.title)}, {escape(f'{experiment.paper} {experiment.where}')}: "
                f"{len(failed)} not held</summary>{short_of(outcome)}{claims(outcome, failed)}"
                f'<p><a href="{address(outcome)}">The figure and all claims</a></p></details>'
            )
    return "".join(html) or "<p>No claim was found not to hold.</p>"


def _rules(outcomes: list[Outcome]) -> str:
    return "".join(
        f"<p>{number(len(mine), 'experiment')} judged by {escape(rule.words)}: "
        + ", ".join(f'<a href="{address(o)}">{escape(o.experiment.id)}</a>' for o in mine)
        + ".</p>"
        for rule, mine in judged_by(outcomes).items()
    )


def _runs(outcomes: list[Outcome], scale: str) -> str:
    contents = [outcome.content for outcome in outcomes if outcome.content is not None]
    dates = sorted(content["finished"][:10] for content in contents)
    pairs = {
        "scale": scale,
        "time in all": duration(sum(content["seconds"] for content in contents)),
        "dates": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "machine": hardware(contents),
        "commits": ", ".join(dict.fromkeys(map(commit, contents))),
    }
    return facts({name: escape(value) for name, value in pairs.items()})
