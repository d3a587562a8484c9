"""Verdicts of experiments within the text of README and the guides, beside the papers' advice.

``whitenorm-lab report`` writes the verdicts of the named experiments between ``<!-- found: ID ID -->`` and
``<!-- /found -->``.
"""

from __future__ import annotations

import re
from pathlib import Path

from whitenorm.cli import suggest
from whitenorm_lab.claims.markdown_page import link_experiment
from whitenorm_lab.claims.outcomes import Outcome, count_verdicts
from whitenorm_lab.markdown_sections import write_text

_MARKS = re.compile(r"(<!-- found: (.*?) -->).*?(<!-- /found -->)", re.DOTALL)


def update_verdicts(path: Path, outcomes: list[Outcome]) -> None:
    """Replace the verdicts between the marks of a file."""
    write_text(path, fill_verdicts(path, outcomes))


def fill_verdicts(path: Path, outcomes: list[Outcome]) -> str:
    """Return the text of a file with current verdicts between its marks."""
    by_id = {outcome.experiment.id: outcome for outcome in outcomes}

    def fill(match: re.Match[str]) -> str:
        names = match[2].split()
        unknown = [name for name in names if name not in by_id]
        if unknown:
            hint = "".join(suggest(name, by_id) for name in unknown)
            raise ValueError(f"expected experiments in {match[1]} of {path} (got {', '.join(unknown)}){hint}")
        return f"{match[1]}{'; '.join(_list_verdicts(by_id[name], path.parent) for name in names)}{match[3]}"

    return _MARKS.sub(fill, path.read_text(encoding="utf-8"))


def _list_verdicts(outcome: Outcome, folder: Path) -> str:
    if outcome.content is None:
        return f"`{outcome.experiment.id}` not run"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in count_verdicts([outcome]).items() if count)
    return f"{link_experiment(outcome, folder)} {counts or 'bars of our own only'}"
