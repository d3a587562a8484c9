"""Pieces of the pages. Text goes in as it is and comes out escaped; what is called html is put in as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from whitenorm_lab.claims.outcomes import PAPERS, Outcome, tally
from whitenorm_lab.claims.verdicts import Verdict

GENERATOR = '<meta name="generator" content="whitenorm-lab report">'
SIGNS: dict[Verdict, str] = {"held": "✓", "not held": "✗", "not decided": "?", "not run": "–"}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{generator}
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
<title>{title}</title>
</head>
<body>
<nav aria-label="Pages">{nav}</nav>
<main>
<header><h1>{title}</h1>{lead}</header>
{body}
</main>
</body>
</html>
"""


def page(name: str, title: str, lead: str, body: str) -> str:
    """A whole page, with the way to the others."""
    names = {"index.html": "All papers", **{page_file(paper): paper for paper in PAPERS}}
    nav = " ".join(
        f'<a href="{file}"{" aria-current=page" if file == name else ""}>{escape(words)}</a>'
        for file, words in names.items()
    )
    return _PAGE.format(generator=GENERATOR, title=escape(title), nav=nav, lead=lead, body=body)


def page_file(paper: str) -> str:
    """The page of a paper."""
    return f"{paper.lower()}.html"


def data_file(outcome: Outcome) -> str:
    """The raw values, beside the pages."""
    return f"data/{outcome.experiment.id}.json"


def figure_file(outcome: Outcome) -> str:
    """The picture, beside the pages."""
    return f"figures/{outcome.experiment.id}.png"


def address(outcome: Outcome) -> str:
    """Where an experiment is shown."""
    return f"{page_file(outcome.experiment.paper)}#{outcome.experiment.id}"


def verdict(name: Verdict) -> str:
    """A verdict with its sign."""
    return f'<strong class="{_class(name)}"><span aria-hidden="true">{SIGNS[name]}</span> {escape(name)}</strong>'


def sign(name: Verdict) -> str:
    """A verdict's sign alone, for where there is no heading above it."""
    return f'<span class="sign {_class(name)}" aria-hidden="true">{SIGNS[name]} </span>'


def bars(outcomes: Iterable[Outcome]) -> str:
    """How many bars of our own got each verdict, in words; nothing where there are none."""
    found = [f"{count} {name}" for name, count in tally(outcomes, bars=True).items() if count]
    return f'<p class="soft">Bars of our own: {", ".join(found)}.</p>' if found else ""


def counts(tallied: Mapping[Verdict, int]) -> str:
    """How many claims got each verdict, as a bar and in words."""
    total = sum(tallied.values())
    if not total:
        return ""
    label = ", ".join(f"{count} {name}" for name, count in tallied.items())
    shares, start = [], 0
    for name, count in tallied.items():
        shares.append(f'<rect class="{_class(name)}" x="{start}" width="{count}" height="1"/>')
        start += count
    words = "".join(f"<li>{verdict(name)} {count}</li>" for name, count in tallied.items())
    return (
        f'<svg class="bar" role="img" aria-label="{label}" viewBox="0 0 {total} 1" preserveAspectRatio="none">'
        f'{"".join(shares)}</svg><ul class="counts">{words}</ul>'
    )


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of html cells, the first of a row its heading; cards on a narrow screen, still a table to a reader."""
    head = "".join(f'<th role="columnheader" scope="col">{escape(heading)}</th>' for heading in headings)
    body = []
    for first, *rest in rows:
        cells = "".join(
            f'<td role="cell" data-label="{escape(heading)}"><div>{cell}</div></td>'
            for heading, cell in zip(headings[1:], rest, strict=True)
        )
        body.append(f'<tr role="row"><th role="rowheader" scope="row">{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table role="table" class="{kind}"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table></div>'
    )


def facts(pairs: Mapping[str, str]) -> str:
    """Names with their html values."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs.items())
    return f'<dl class="facts">{inner}</dl>'


def prose(text: str) -> str:
    """A docstring's paragraphs, with its ``code``.

    Example::

        >>> prose("A < B.\\n\\nCommand: ``run``.")
        '<p>A &lt; B.</p><p>Command: <code>run</code>.</p>'
    """
    paragraphs = re.split(r"\n\s*\n", text.strip())
    html = "".join(f"<p>{escape(' '.join(paragraph.split()))}</p>" for paragraph in paragraphs)
    return re.sub(r"``(.+?)``", r"<code>\1</code>", html)


def measured(text: str) -> str:
    """Text with numbers, which stay with their signs on one line; means stand out."""
    html = re.sub(r"(-?\d[\d.]*(?:e[+-]?\d+)?)(?= ± \d)", r'<span class="mean">\1</span>', escape(text))
    return re.sub(r" (±|=|&lt;|≤|≥) ", "\u00a0\\1\u00a0", html)


def _class(name: str) -> str:
    return name.replace(" ", "-")
