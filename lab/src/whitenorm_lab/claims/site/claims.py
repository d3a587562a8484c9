"""Claims as rows: what the paper says, what came out here, part by part, and the verdict."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from whitenorm_lab.claims.outcomes import Outcome
from whitenorm_lab.claims.site.pieces import address, measured, table, verdict

_HEADINGS = ("claim", "paper", "here", "verdict")
# A method's number, behind which the next method begins.
_NUMBER = re.compile(r"(± [\d.e+-]+), ")


def claims(outcome: Outcome, rows: list[dict[str, Any]]) -> str:
    """The papers' claims, then the bars of our own in a table by themselves."""
    papers, bars = ([row for row in rows if row["bar"] == bar] for bar in (False, True))
    html = table("Claims of the paper", _HEADINGS, [_row(outcome, row) for row in papers], "claims") if papers else ""
    if bars:
        html += (
            '<h3>Bars of our own</h3><p class="soft">Set here, not claimed by the paper, and counted apart.</p>'
            + table("Bars of our own", _HEADINGS, [_row(outcome, row) for row in bars], "claims")
        )
    return html


def short_of(outcome: Outcome) -> str:
    """What the scale is short of, above the claims that it stands with."""
    words = next((row["short"] for row in outcome.claims if row["short"]), "")
    return f'<p class="note"><strong>Smaller than the paper’s.</strong> {escape(words)}</p>' if words else ""


def _row(outcome: Outcome, row: dict[str, Any]) -> list[str]:
    return [escape(row["claim"]), escape(row["paper"]), _here(row), _verdict(outcome, row)]


def _here(row: dict[str, Any]) -> str:
    reason = f'<p class="soft">{measured(row["reason"])}</p>' if row["reason"] else ""
    if len(row["parts"]) == 1:
        return measured(_NUMBER.sub(r"\1\n", row["ours"])).replace("\n", "<br>") + reason
    return f'<ul class="parts">{"".join(map(_part, row["parts"]))}</ul>{reason}'


def _part(part: dict[str, Any]) -> str:
    judged = f'<span class="soft">{verdict(part["verdict"])} {measured(part["why"])}</span>' if part["verdict"] else ""
    return f"<li>{measured(part['ours'])} {judged}</li>"


def _verdict(outcome: Outcome, row: dict[str, Any]) -> str:
    lines = [verdict(row["verdict"])]
    if row["why"]:
        lines.append(f'<span class="soft">{measured(row["why"])}</span>')
    if row["short"]:
        lines.append(f'<a class="mark" href="{address(outcome)}-scale">smaller run</a>')
    return " ".join(lines)
