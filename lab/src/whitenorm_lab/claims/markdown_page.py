"""Verdicts as Markdown: the generated part of the claims page, and three lines for the README."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from whitenorm_lab.claims import verdicts
from whitenorm_lab.claims.outcomes import (
    VERDICTS,
    Outcome,
    count_verdicts,
    describe_hardware,
    format_commit,
    format_duration,
    pluralize,
    summarize,
    summarize_by_topic,
)
from whitenorm_lab.papers.not_built import NOT_BUILT

# Markers of the generated parts.
START, END = "<!-- claims: written by whitenorm-lab report -->", "<!-- end of claims -->"
TALLY_START, TALLY_END = "<!-- tally: written by whitenorm-lab report -->", "<!-- end of tally -->"


def format_tally(outcomes: list[Outcome]) -> str:
    """Format three lines: counts of the papers' claims, other counts, and the experiments with failed claims."""
    first, *others = summarize_by_topic(outcomes, NOT_BUILT)
    failed = {outcome.experiment.id: count for outcome in outcomes if (count := count_verdicts([outcome])["not held"])}
    where = ", ".join(f"`{name}`{f' ({count})' if count > 1 else ''}" for name, count in failed.items())
    last = f"Where a claim did not hold: {where}." if failed else "No claim was found not to hold."
    return "\n".join(f"- {line}" for line in (first, " ".join(others), last) if line)


def format_page(outcomes: list[Outcome], scale: str, folder: Path | None) -> str:
    """Format all verdicts: a table of experiments, the failed claims, the reductions of the runs, and the rule.

    Links lead to the stored results from a page in ``folder``, or without one to the papers' pages beside it.
    """
    contents = [outcome.content for outcome in outcomes if outcome.content is not None]
    time = format_duration(sum(content["seconds"] for content in contents))
    commits = ", ".join(dict.fromkeys(map(format_commit, contents)))
    text = [
        f"**{summarize(outcomes, NOT_BUILT)}**",
        "",
        f"At {scale} scale, {time} in all, on {escape_markdown(describe_hardware(contents))}; commit {commits}.",
        "",
        f"| paper | experiment | {' | '.join(VERDICTS)} | time |",
        f"| --- | --- |{' ---: |' * (len(VERDICTS) + 1)}",
        *(_format_row(outcome, folder) for outcome in outcomes),
    ]
    dashes = " | ".join(["–"] * len(VERDICTS))
    for missing in NOT_BUILT:
        what = escape_markdown(f"{missing.title} ({missing.why})")
        text.append(f"| {escape_markdown(f'{missing.paper} {missing.where}')} | {what} | {dashes} | not built |")
    text += ["", *_format_failures(outcomes), *_format_reductions(outcomes), *_format_rule()]
    return "\n".join(text).strip()


def _format_row(outcome: Outcome, folder: Path | None) -> str:
    counts, bars = count_verdicts([outcome]), count_verdicts([outcome], bars=True)
    cells = [
        f"{counts[name]} and {pluralize(bars[name], 'bar')}" if bars[name] else str(counts[name]) for name in VERDICTS
    ]
    cells.append("not run" if outcome.content is None else format_duration(outcome.content["seconds"]))
    what = f"{link_experiment(outcome, folder)}: {escape_markdown(outcome.experiment.title)}"
    return f"| {_format_place(outcome)} | {what} | {' | '.join(cells)} |"


def link_experiment(outcome: Outcome, folder: Path | None) -> str:
    """Link an experiment's name to its results from a page in ``folder``, or without one to its paper's page."""
    name = f"`{outcome.experiment.id}`"
    if folder is None:
        return f"[{name}]({outcome.experiment.paper.lower()}.md#{outcome.experiment.id})"
    if outcome.content is None and not outcome.earlier:
        return name
    return f"[{name}]({Path(os.path.relpath(outcome.store.results.parent, folder)).as_posix()})"


def _format_failures(outcomes: list[Outcome]) -> list[str]:
    lines = []
    for outcome in outcomes:
        failed = [claim for claim in outcome.claims if claim["verdict"] == "not held"]
        if failed:
            reduction = escape_markdown(outcome.reduction)
            lines.append(
                f"- {_format_place(outcome)}, `{outcome.experiment.id}`.{f' {reduction}' if reduction else ''}"
            )
            lines += [line for claim in failed for line in _format_failure(claim)]
    return ["## What did not hold", "", *(lines or ["No claim was found not to hold."]), ""]


def _format_failure(claim: dict[str, Any]) -> list[str]:
    """Format a claim and its values, with one line per part if it has several."""
    bar = "Bar of our own: " if claim["bar"] else ""
    first = f"    - {bar}**{escape_markdown(claim['claim'])}.** Paper: {escape_markdown(claim['paper'])}. Here: "
    reason = f" {escape_markdown(claim['reason'])}" if claim["reason"] else ""
    if len(claim["parts"]) == 1:
        return [f"{first}{_format_values(claim['ours'], claim['why'])}.{reason}"]
    lines = [f"{first}{escape_markdown(claim['why'])}.{reason}"]
    for part in claim["parts"]:
        why = f"{part['verdict']}, {part['why']}" if part["verdict"] else ""
        lines.append(f"        - {_format_values(part['ours'], why)}")
    return lines


def _format_values(ours: str, why: str) -> str:
    return escape_markdown(f"{ours} ({why})" if why else ours)


def _format_reductions(outcomes: list[Outcome]) -> list[str]:
    lines = [
        f"- `{one.experiment.id}`: {reduction}" for one in outcomes if (reduction := escape_markdown(one.reduction))
    ]
    return ["## What these runs are short of, held or not", "", *lines, ""] if lines else []


def _format_rule() -> list[str]:
    """Format the docstring that states the rule."""
    paragraphs = map(escape_markdown, re.split(r"\n\s*\n", (verdicts.__doc__ or "").strip()))
    return ["## How a claim is judged", "", *(line for paragraph in paragraphs for line in (paragraph, ""))]


def _format_place(outcome: Outcome) -> str:
    return escape_markdown(f"{outcome.experiment.paper} {outcome.experiment.where}")


def escape_markdown(text: str) -> str:
    """Escape text for Markdown, both GitHub's and mkdocs', and join its lines.

    Example::

        >>> escape_markdown("a_b < c|d")
        'a\\\\_b &lt; c&#124;d'
    """
    return escape_inline(" ".join(text.split()))


def escape_inline(text: str) -> str:
    """Escape what Markdown would interpret within a line."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", text).translate(_ENTITIES)


# Characters whose backslash escape only GitHub understands.
_ENTITIES = str.maketrans({"<": "&lt;", ">": "&gt;", "|": "&#124;", "~": "&#126;"})
