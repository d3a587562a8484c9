"""The README's table of claims."""

from __future__ import annotations

import re

from whitenorm.lab.experiments.not_built import NOT_BUILT, NotBuilt
from whitenorm.lab.reproduce.outcomes import VERDICTS, Outcome, commit, duration, hardware, number, summary, tally

START, END = "<!-- claims: written by whitenorm report -->", "<!-- end of claims -->"


def markdown(outcomes: list[Outcome], scale: str) -> str:
    """How many claims held, by experiment, and what is known of those that did not."""
    contents = [outcome.content for outcome in outcomes if outcome.content is not None]
    time = duration(sum(content["seconds"] for content in contents))
    commits = ", ".join(dict.fromkeys(map(commit, contents)))
    lines = [
        f"**{summary(outcomes, NOT_BUILT)}**",
        "",
        f"At {scale} scale, {time} in all, on {_plain(hardware(contents))}; commit {commits}.",
        "",
        f"| paper | experiment | {' | '.join(VERDICTS)} | time |",
        f"| --- | --- |{' ---: |' * (len(VERDICTS) + 1)}",
        *map(_row, outcomes),
        *map(_not_built, NOT_BUILT),
        "",
        *_failures(outcomes),
    ]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    experiment = outcome.experiment
    if outcome.content is None:
        cells = [*["–"] * len(VERDICTS), "not run"]
    else:
        cells = [
            *map(_cell, tally([outcome]).values(), tally([outcome], bars=True).values()),
            duration(outcome.content["seconds"]),
        ]
    what = f"`{experiment.id}`: {_plain(experiment.title)}"
    return f"| {_plain(f'{experiment.paper} {experiment.where}')} | {what} | {' | '.join(cells)} |"


def _cell(claims: int, bars: int) -> str:
    return f"{claims} and {number(bars, 'bar')}" if bars else str(claims)


def _not_built(missing: NotBuilt) -> str:
    cells = " | ".join(["–"] * len(VERDICTS))
    return f"| {_plain(f'{missing.paper} {missing.where}')} | {_plain(missing.title)} | {cells} | not built |"


def _failures(outcomes: list[Outcome]) -> list[str]:
    lines = [
        f"- {_plain(f'{outcome.experiment.paper} {outcome.experiment.where}')}, `{outcome.experiment.id}`: "
        f"**{_plain(claim['claim'])}.** Paper: {_plain(claim['paper'])}. Here: {_plain(claim['ours'])}"
        + (f" ({_plain(claim['why'])})." if claim["why"] else ".")
        + "".join(f" {_plain(claim[why])}" for why in ("reason", "short") if claim[why])
        for outcome in outcomes
        for claim in outcome.claims
        if claim["verdict"] == "not held"
    ]
    return ["Not held:", "", *lines] if lines else ["No claim was found not to hold."]


def _plain(text: str) -> str:
    """As itself on one line: nothing in it means anything to Markdown."""
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))
