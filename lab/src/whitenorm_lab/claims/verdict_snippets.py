"""What was found here, beside a paper's advice in README and guides: verdicts of entries, written by a command.

Where a text gives a paper's advice, ``<!-- found: ID ID -->`` and ``<!-- /found -->`` have the verdicts of these
entries between them.
"""

from __future__ import annotations

import re
from pathlib import Path

from whitenorm._suggest import suggest
from whitenorm_lab.claims.markdown_page import link_experiment
from whitenorm_lab.claims.outcomes import Outcome, tally

_MARKS = re.compile(r"(<!-- found: (.*?) -->).*?(<!-- /found -->)", re.DOTALL)


def write_found(path: Path, outcomes: list[Outcome]) -> None:
    """Put the verdicts between the marks of a file, whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(with_found(path, outcomes), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def with_found(path: Path, outcomes: list[Outcome]) -> str:
    """The text of a file with the verdicts of today between its marks."""
    entries = {outcome.experiment.id: outcome for outcome in outcomes}

    def between(match: re.Match[str]) -> str:
        names = match[2].split()
        unknown = [name for name in names if name not in entries]
        if unknown:
            hint = "".join(suggest(name, entries) for name in unknown)
            raise ValueError(f"expected experiments in {match[1]} of {path} (got {', '.join(unknown)}){hint}")
        return f"{match[1]}{'; '.join(_found(entries[name], path.parent) for name in names)}{match[3]}"

    return _MARKS.sub(between, path.read_text(encoding="utf-8"))


def _found(outcome: Outcome, folder: Path) -> str:
    """An entry's verdicts on the paper's claims, with the way to its files."""
    if outcome.content is None:
        return f"`{outcome.experiment.id}` not run"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in tally([outcome]).items() if count)
    return f"{link_experiment(outcome, folder)} {counts or 'bars of our own only'}"
