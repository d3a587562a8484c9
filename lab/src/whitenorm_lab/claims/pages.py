"""Markdown pages of stored results: one per paper, an index of the papers, and an index of the stored files.

They are written by ``whitenorm-lab report``; the documentation adds the same pages of the papers.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from whitenorm_lab.claims.markdown_page import escape_inline, escape_markdown, format_page, link_experiment
from whitenorm_lab.claims.outcomes import (
    PAPERS,
    VERDICTS,
    Outcome,
    count_seeds,
    count_verdicts,
    describe_hardware,
    describe_kernels,
    describe_rule,
    describe_run,
    find_not_built,
    format_commit,
    summarize,
)
from whitenorm_lab.claims.verdicts import Verdict

GENERATED = "<!-- Written by whitenorm-lab report. -->"
_SIGNS: dict[Verdict, str] = {"held": "✓", "not held": "✗", "not decided": "?", "not run": "–"}
# Marks claims whose run is smaller than the paper's.
_SMALLER = "‡"
# The number of one method, followed by the next method.
_NUMBER = re.compile(r"(± [\d.e+-]+), ")


def get_page_name(paper: str) -> str:
    """Return the file name of a paper's page."""
    return f"{paper.lower()}.md"


def format_index_page(outcomes: list[Outcome], scale: str) -> str:
    """Format the first page: counts by paper, then the table of experiments and the text of the page of claims."""
    papers = []
    for paper, group in groupby(outcomes, key=lambda outcome: outcome.experiment.paper):
        mine = list(group)
        words = escape_markdown(summarize(mine, find_not_built(paper), verdicts=False))
        papers.append(
            f"- [{escape_markdown(PAPERS[paper].title)} ({paper})]({get_page_name(paper)}): {words} {_count(mine)}"
        )
    title = "# Do the papers' claims hold here?"
    return "\n\n".join([GENERATED, title, "\n".join(papers), format_page(outcomes, scale, None)]) + "\n"


def format_paper_page(
    paper: str, outcomes: list[Outcome], scale: str, files: str = "results", index: str = "README.md"
) -> str:
    """Format the page of a paper: its experiments, each with figure, claims and verdicts.

    Args:
        paper: one of ``PAPERS``.
        outcomes: of the paper's experiments.
        scale: of the runs.
        files: address of the folder that has raw values and figures as ``ID/SCALE.json`` and ``ID/SCALE.png``.
        index: address of the page that says how a claim is judged.
    """
    missing = find_not_built(paper)
    blocks = [
        GENERATED,
        f"# {escape_markdown(PAPERS[paper].title)} ({paper})",
        f"[The paper]({PAPERS[paper].address}). {escape_markdown(summarize(outcomes, missing, verdicts=False))}",
        _count(outcomes),
        *(block for outcome in outcomes for block in _describe_experiment(outcome, scale, files, index)),
    ]
    if missing:
        rows = ["- " + escape_markdown(f"{one.title} ({one.paper} {one.where}): {one.why}.") for one in missing]
        blocks += ["## Not built", "The paper also reports these, which no experiment here runs.", "\n".join(rows)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def format_results_index(outcomes: list[Outcome], folder: Path) -> str:
    """Format a table of the results that are stored in a folder."""
    header = ["experiment", "what", "paper", *VERDICTS, "finished", "scale", "seeds"]
    rows = [header, ["---"] * 3 + ["---:"] * len(VERDICTS) + ["---", "---", "---:"]]
    for outcome in outcomes:
        # Also the results of an earlier set-up.
        content = outcome.store.read()
        if content is None:
            continue
        experiment = outcome.experiment
        counts = ["–"] * len(VERDICTS) if outcome.earlier else list(map(str, count_verdicts([outcome]).values()))
        paper = escape_markdown(f"{experiment.paper} {experiment.where}")
        finished = content["finished"][:10] + (" (earlier set-up)" if outcome.earlier else "")
        end = [finished, content["scale"], str(count_seeds(content))]
        rows.append([link_experiment(outcome, folder), escape_markdown(experiment.title), paper, *counts, *end])
    text = (
        "One folder per experiment, with settings, raw values of every run, and judged claims as JSON, from which "
        "`whitenorm-lab report` draws the figures. Verdicts of the papers' claims are counted here, without our own "
        "bars; results of an earlier set-up are not judged."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([GENERATED, "# Stored results", text, table]) + "\n"


def _count(outcomes: list[Outcome]) -> str:
    claims, bars = (
        [f"{_SIGNS[v]} {n} {v}" for v, n in count_verdicts(outcomes, b).items() if n] for b in (False, True)
    )
    words = f"**{', '.join(claims)}**." if claims else ""
    return f"{words} Bars of our own: {', '.join(bars)}." if bars else words


def _describe_experiment(outcome: Outcome, scale: str, files: str, index: str) -> list[str]:
    experiment, content = outcome.experiment, outcome.content
    what, _, setup = outcome.setup.strip().partition("\n\n")
    data = f"{files}/{experiment.id}/{scale}.json"
    blocks = [
        f'## <a id="{experiment.id}"></a>{escape_markdown(experiment.title)}',
        f"{escape_markdown(f'{experiment.paper} {experiment.where}')}, `{experiment.id}`",
        _convert_prose(what),
        '<details markdown="1"><summary>Set-up of the paper, and here</summary>',
        _convert_prose(setup),
        "</details>",
    ]
    if content is None:
        earlier = f" with this set-up; of an earlier one, which was changed, [there are results]({data})"
        blocks.append(f"**Not run** at {scale} scale{earlier if outcome.earlier else ''}.")
    else:
        figure = f"{files}/{experiment.id}/{scale}.png"
        alt = escape_markdown(f"{experiment.title}, as measured here: {experiment.paper} {experiment.where}")
        blocks += [f"[![{alt}]({figure})]({figure})", escape_markdown(describe_run(content))]
        blocks.append(escape_markdown(describe_kernels(content)))
    if outcome.reduction:
        blocks.append(f"> {_SMALLER} **Smaller than the paper's.** {escape_markdown(outcome.reduction)}")
    blocks.append(_tabulate([claim for claim in outcome.claims if not claim["bar"]]))
    if bars := [claim for claim in outcome.claims if claim["bar"]]:
        blocks += ["**Bars of our own**, set here, not claimed by the paper, and counted apart:", _tabulate(bars)]
    if content is not None:
        blocks.append(
            f"Judged by [{escape_markdown(describe_rule(content))}]({index}#how-a-claim-is-judged). "
            f"Finished {content['finished'][:10]}, commit {escape_markdown(format_commit(content))}, "
            f"on {escape_markdown(describe_hardware([content]))}. "
            f"Raw values: [{experiment.id}.json]({data})."
        )
    return blocks


def _tabulate(claims: list[dict[str, Any]]) -> str:
    if not claims:
        return ""
    rows = [["claim", "paper", "here", "verdict"], ["---"] * 4]
    for claim in claims:
        if len(claim["parts"]) == 1:
            lines = [_format_numbers(part) for part in _NUMBER.sub(r"\1\n", claim["ours"]).split("\n")]
        else:
            lines = [f"• {_format_part(part)}" for part in claim["parts"]]
        if claim["reason"]:
            lines.append(f"*{_format_numbers(claim['reason'])}*")
        verdict = f"**{_SIGNS[claim['verdict']]} {claim['verdict']}**"
        if claim["short"] and claim["verdict"] != "not run":
            verdict += f" {_SMALLER}"
        if claim["why"]:
            verdict += f"<br>{_format_numbers(claim['why'])}"
        rows.append([escape_markdown(claim["claim"]), escape_markdown(claim["paper"]), "<br>".join(lines), verdict])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_part(part: dict[str, Any]) -> str:
    ours = _format_numbers(part["ours"])
    if not part["verdict"]:
        return ours
    return f"{ours}: {_SIGNS[part['verdict']]} {part['verdict']}, {_format_numbers(part['why'])}"


def _format_numbers(text: str) -> str:
    """Escape text, and keep numbers and their signs on one line."""
    return re.sub(r" (±|=|&lt;|≤|≥) ", "\u00a0\\1\u00a0", escape_markdown(text))


def _convert_prose(text: str) -> str:
    """Convert the paragraphs of a docstring to Markdown.

    Example::

        >>> _convert_prose("A_1 < B.\\n\\nCommand: ``run_1``.")
        'A\\\\_1 &lt; B.\\n\\nCommand: ``run_1``.'
    """
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))
    return re.sub(r"``.+?``|[^`]+", _escape_outside_code, "\n\n".join(paragraphs))


def _escape_outside_code(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith("``") else escape_inline(match[0])
