"""Write tables and numbers of the stored benchmarks into README and docs: ``python -m benchmarks.pages``.

``make bench`` and ``python -m benchmarks.launches --write`` do the same after measuring. A test checks that the pages
agree with the results. Tables stand between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` on their page; numbers in
sentences, on any page, between ``<!-- measured: NAME -->`` and ``<!-- /measured -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import backends, costs, exact_solvers, launch_tables, neighbours, report
from whitenorm_lab.markdown_sections import replace_section

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
_MEASURED = re.compile(r"(<!-- measured: (.*?) -->).*?(<!-- /measured -->)", re.DOTALL)


def load_results(name: str) -> dict[str, Any]:
    """Load the stored results with this name."""
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def _monitoring() -> str:
    return f"at most {100 * max(case['overhead'] for case in load_results('monitoring')['cases'].values()):.1f} %"


def _monitoring_seconds() -> str:
    return f"{load_results('monitoring')['seconds']:.0f} seconds"


def _collectives() -> str:
    return f"{max(row['collectives'] for row in load_results('launches')['ranks']['rows'].values())}"


MEASURED: dict[str, Callable[[], str]] = {
    "monitoring": _monitoring,
    "monitoring seconds": _monitoring_seconds,
    "collectives": _collectives,
}
"""Numbers in sentences, by name."""


def blocks() -> dict[Path, dict[str, str]]:
    """Return the tables of each page, by name."""
    full, launches = load_results("full"), load_results("launches")
    return {
        Path("README.md"): {"costs: written by `make bench`": costs.table(full, launches)},
        Path("docs/benchmarks.md"): {
            "costs: written by `make bench`": report.cost_table(full),
            "targets: written by `make bench`": report.target_table(full),
            "exact solvers": exact_solvers.format_table(load_results("exact_solvers")),
            "exact launches": exact_solvers.format_launches(),
            "backends": backends.format_table(load_results("backends")),
            "details: written by `make bench`": report.detail_table(full),
        },
        Path("docs/numerics.md"): {"minimax": exact_solvers.format_promises()},
        Path("docs/whitener.md"): {"neighbours": neighbours.format_table(load_results("neighbours"))},
        Path("docs/gpu.md"): {name: table(launches) for name, table in launch_tables.TABLES.items()},
    }


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return README and docs with current tables and numbers."""
    mine = blocks()
    found = {}
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for name, block in mine.get(path.relative_to(root), {}).items():
            text = replace_section(text, f"<!-- {name} -->", f"<!-- end of {name.partition(':')[0]} -->", block, path)
        found[path] = _MEASURED.sub(lambda match, path=path: _inline(match, path), text)
    return found


def _inline(match: re.Match[str], path: Path) -> str:
    if match[2] not in MEASURED:
        raise ValueError(f"expected one of {', '.join(MEASURED)} in {match[1]} of {path} (got {match[2]})")
    return f"{match[1]}{MEASURED[match[2]]()}{match[3]}"


def write() -> list[Path]:
    """Write the pages that changed, and return their paths."""
    changed = [(path, text) for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path, text in changed:
        path.write_text(text, encoding="utf-8")
    return [path for path, _ in changed]


if __name__ == "__main__":
    for path in write():
        print(f"Written: {path.relative_to(ROOT)}")
