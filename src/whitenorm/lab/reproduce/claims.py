"""The README's table of claims."""

from __future__ import annotations

import re
from typing import Any

from whitenorm.lab.experiments.not_built import NOT_BUILT, NotBuilt
from whitenorm.lab.reproduce.outcomes import (
    VERDICTS,
    Outcome,
    commit,
    duration,
    hardware,
    judged_by,
    number,
    summary,
    tally,
)

START, END = "<!-- claims: written by whitenorm report -->", "<!-- end of claims -->"


def markdown(outcomes: list[Outcome], scale: str) -> str:
    """How many claims held, by experiment, what the runs are short of, and what is known of those that did not hold."""
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
        *_rules(outcomes),
        *_reductions(outcomes),
        *_failures(outcomes),
    ]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    experiment = outcome.experiment
    time = "not run" if outcome.content is None else duration(outcome.content["seconds"])
    cells = [*map(_cell, tally([outcome]).values(), tally([outcome], bars=True).values()), time]
    what = f"`{experiment.id}`: {_plain(experiment.title)}"
    return f"| {_where(outcome)} | {what} | {' | '.join(cells)} |"


def _cell(claims: int, bars: int) -> str:
    return f"{claims} and {number(bars, 'bar')}" if bars else str(claims)


def _not_built(missing: NotBuilt) -> str:
    cells = " | ".join(["–"] * len(VERDICTS))
    what = f"{_plain(missing.title)} ({_plain(missing.why)})"
    return f"| {_plain(f'{missing.paper} {missing.where}')} | {what} | {cells} | not built |"


def _rules(outcomes: list[Outcome]) -> list[str]:
    return [
        line
        for rule, mine in judged_by(outcomes).items()
        for line in (f"Judged by {_plain(rule.words)}: {', '.join(f'`{o.experiment.id}`' for o in mine)}.", "")
    ]


def _reductions(outcomes: list[Outcome]) -> list[str]:
    """What stands with every claim of an entry, held or not."""
    lines = [f"- `{outcome.experiment.id}`: {_plain(words)}" for outcome in outcomes if (words := _short(outcome))]
    if not lines:
        return []
    return ["<details><summary>What these runs are short of, held or not</summary>", "", *lines, "", "</details>", ""]


def _short(outcome: Outcome) -> str:
    return next((claim["short"] for claim in outcome.claims if claim["short"]), "")


def _failures(outcomes: list[Outcome]) -> list[str]:
    lines = []
    for outcome in outcomes:
        failed = [claim for claim in outcome.claims if claim["verdict"] == "not held"]
        if failed:
            short = f" {_plain(_short(outcome))}" if _short(outcome) else ""
            lines.append(f"- {_where(outcome)}, `{outcome.experiment.id}`.{short}")
            lines += [line for claim in failed for line in _failure(claim)]
    return ["Not held:", "", *lines] if lines else ["No claim was found not to hold."]


def _failure(claim: dict[str, Any]) -> list[str]:
    """A claim and its numbers, a line a part where there are several."""
    bar = "Bar of our own: " if claim["bar"] else ""
    first = f"  - {bar}**{_plain(claim['claim'])}.** Paper: {_plain(claim['paper'])}. Here: "
    reason = f" {_plain(claim['reason'])}" if claim["reason"] else ""
    if len(claim["parts"]) == 1:
        return [f"{first}{_judged(claim['ours'], claim['why'])}.{reason}"]
    parts = [f"    - {_judged(part['ours'], _words(part))}" for part in claim["parts"]]
    return [f"{first}{_plain(claim['why'])}.{reason}", *parts]


def _words(part: dict[str, Any]) -> str:
    return f"{part['verdict']}, {part['why']}" if part["verdict"] else ""


def _judged(ours: str, why: str) -> str:
    return f"{_plain(ours)} ({_plain(why)})" if why else _plain(ours)


def _where(outcome: Outcome) -> str:
    return _plain(f"{outcome.experiment.paper} {outcome.experiment.where}")


def _plain(text: str) -> str:
    """As itself on one line: nothing in it means anything to Markdown."""
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))
