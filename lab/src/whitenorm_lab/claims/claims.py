"""The page of claims, and the README's three lines of it: Markdown between marks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from whitenorm_lab.claims import verdicts
from whitenorm_lab.claims.outcomes import (
    VERDICTS,
    Outcome,
    commit,
    duration,
    group_by_rule,
    hardware,
    pluralize,
    sentences,
    summary,
    tally,
)
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt

START, END = "<!-- claims: written by whitenorm-lab report -->", "<!-- end of claims -->"
TALLY_START, TALLY_END = "<!-- tally: written by whitenorm-lab report -->", "<!-- end of tally -->"


def lines(outcomes: list[Outcome]) -> str:
    """How many claims of the papers held; what else was counted; and where some did not hold, by name."""
    first, *others = sentences(outcomes, NOT_BUILT)
    failed = {outcome.experiment.id: count for outcome in outcomes if (count := tally([outcome])["not held"])}
    where = ", ".join(f"`{name}`{f' ({count})' if count > 1 else ''}" for name, count in failed.items())
    last = f"Where a claim did not hold: {where}." if failed else "No claim was found not to hold."
    return "\n".join(f"- {line}" for line in (first, " ".join(others), last) if line)


def markdown(outcomes: list[Outcome], scale: str, folder: Path | None) -> str:
    """How many claims held, by experiment, what is known of those that did not, by which rule, and what runs lack.

    Links lead to the stored results, from a page in ``folder``; without it to the pages of the papers beside.
    """
    contents = [outcome.content for outcome in outcomes if outcome.content is not None]
    time = duration(sum(content["seconds"] for content in contents))
    commits = ", ".join(dict.fromkeys(map(commit, contents)))
    text = [
        f"**{summary(outcomes, NOT_BUILT)}**",
        "",
        f"At {scale} scale, {time} in all, on {plain(hardware(contents))}; commit {commits}.",
        "",
        f"| paper | experiment | {' | '.join(VERDICTS)} | time |",
        f"| --- | --- |{' ---: |' * (len(VERDICTS) + 1)}",
        *(_row(outcome, folder) for outcome in outcomes),
        *map(_not_built, NOT_BUILT),
        "",
        *_failures(outcomes),
        *_reductions(outcomes),
        *_rules(outcomes),
    ]
    return "\n".join(text).strip()


def _row(outcome: Outcome, folder: Path | None) -> str:
    experiment = outcome.experiment
    time = "not run" if outcome.content is None else duration(outcome.content["seconds"])
    cells = [*map(_cell, tally([outcome]).values(), tally([outcome], bars=True).values()), time]
    what = f"{linked(outcome, folder)}: {plain(experiment.title)}"
    return f"| {_where(outcome)} | {what} | {' | '.join(cells)} |"


def linked(outcome: Outcome, folder: Path | None) -> str:
    """An experiment's name, linked to its results from a page in ``folder``, without it to its paper's page."""
    name = f"`{outcome.experiment.id}`"
    if folder is None:
        return f"[{name}]({outcome.experiment.paper.lower()}.md#{outcome.experiment.id})"
    if outcome.content is None and not outcome.earlier:
        return name
    return f"[{name}]({Path(os.path.relpath(outcome.store.results.parent, folder)).as_posix()})"


def _cell(claims: int, bars: int) -> str:
    return f"{claims} and {pluralize(bars, 'bar')}" if bars else str(claims)


def _not_built(missing: NotBuilt) -> str:
    cells = " | ".join(["–"] * len(VERDICTS))
    what = f"{plain(missing.title)} ({plain(missing.why)})"
    return f"| {plain(f'{missing.paper} {missing.where}')} | {what} | {cells} | not built |"


def _rules(outcomes: list[Outcome]) -> list[str]:
    """The rule in its module's own words, and who was judged by which."""
    paragraphs = re.split(r"\n\s*\n", (verdicts.__doc__ or "").strip())
    judged = [
        f"Judged by {plain(rule.words)}: {', '.join(f'`{o.experiment.id}`' for o in mine)}."
        for rule, mine in group_by_rule(outcomes).items()
    ]
    return [
        "## How a claim is judged",
        "",
        *(line for text in (*map(plain, paragraphs), *judged) for line in (text, "")),
    ]


def _reductions(outcomes: list[Outcome]) -> list[str]:
    """What stands with every claim of an entry, held or not."""
    rows = [f"- `{outcome.experiment.id}`: {plain(words)}" for outcome in outcomes if (words := outcome.reduction)]
    return ["## What these runs are short of, held or not", "", *rows, ""] if rows else []


def _failures(outcomes: list[Outcome]) -> list[str]:
    rows = []
    for outcome in outcomes:
        failed = [claim for claim in outcome.claims if claim["verdict"] == "not held"]
        if failed:
            short = f" {plain(outcome.reduction)}" if outcome.reduction else ""
            rows.append(f"- {_where(outcome)}, `{outcome.experiment.id}`.{short}")
            rows += [row for claim in failed for row in _failure(claim)]
    return ["## What did not hold", "", *(rows or ["No claim was found not to hold."]), ""]


def _failure(claim: dict[str, Any]) -> list[str]:
    """A claim and its numbers, a line a part where there are several."""
    bar = "Bar of our own: " if claim["bar"] else ""
    first = f"    - {bar}**{plain(claim['claim'])}.** Paper: {plain(claim['paper'])}. Here: "
    reason = f" {plain(claim['reason'])}" if claim["reason"] else ""
    if len(claim["parts"]) == 1:
        return [f"{first}{_judged(claim['ours'], claim['why'])}.{reason}"]
    parts = [f"        - {_judged(part['ours'], _words(part))}" for part in claim["parts"]]
    return [f"{first}{plain(claim['why'])}.{reason}", *parts]


def _words(part: dict[str, Any]) -> str:
    return f"{part['verdict']}, {part['why']}" if part["verdict"] else ""


def _judged(ours: str, why: str) -> str:
    return f"{plain(ours)} ({plain(why)})" if why else plain(ours)


def _where(outcome: Outcome) -> str:
    return plain(f"{outcome.experiment.paper} {outcome.experiment.where}")


def plain(text: str) -> str:
    """As itself on one line: nothing in it means anything to Markdown, be it GitHub's or mkdocs'.

    Example::

        >>> plain("a_b < c|d")
        'a\\\\_b &lt; c&#124;d'
    """
    return escape(" ".join(text.split()))


def escape(text: str) -> str:
    """Escape what Markdown would interpret within a line."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", text).translate(_ENTITIES)


# What a backslash escapes for GitHub alone.
_ENTITIES = str.maketrans({"<": "&lt;", ">": "&gt;", "|": "&#124;", "~": "&#126;"})
