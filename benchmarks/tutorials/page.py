"""Tutorial pages whose numbers come from running their own code."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab import checksum
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.markdown_sections import write_section

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Tutorial:
    """A page, and functions that show its results.

    The page's code starts with one line of whole numbers, ``images, epochs = 1000, 6``, which set the size of a run.
    """

    name: str
    """Name of the page's file, of its picture and of its results."""
    sizes: tuple[str, ...]
    """Names in the page's line of numbers."""
    outcome: str
    """Name of the variable that holds the results of the page's code, which must be JSON values."""
    table: Callable[[dict[str, Any], tuple[int, ...]], str]
    """Function from results and sizes to the page's text."""
    draw: Callable[[dict[str, Any]], Figure]
    """Function from results to the picture."""

    @property
    def page(self) -> Path:
        return _ROOT / "docs" / "tutorials" / f"{self.name}.md"

    @property
    def picture(self) -> Path:
        return self.page.with_suffix(".png")

    @property
    def results(self) -> Path:
        return _ROOT / "benchmarks" / "results" / f"{self.name}.json"

    def code(self) -> str:
        """Return all Python code of the page."""
        return "\n".join(re.findall(r"```python\n(.*?)```", self.page.read_text(encoding="utf-8"), re.DOTALL))

    def digest(self) -> str:
        """Return a digest of the code, which tells whether stored results are of other code."""
        return hashlib.sha256(self.code().encode()).hexdigest()[:16]

    def own_sizes(self) -> tuple[int, ...]:
        """Return the numbers in the page's line of numbers."""
        return tuple(map(int, self._line().groups()))

    def run(self, sizes: tuple[int, ...] | None = None) -> Any:
        """Run the page's code, with its own sizes or others, and return its results."""
        source = self.code()
        if sizes is not None:
            source = source.replace(self._line().group(), f"{', '.join(self.sizes)} = {', '.join(map(str, sizes))}")
        names: dict[str, Any] = {}
        exec(compile(source, str(self.page), "exec"), names)
        return names[self.outcome]

    def measure(self) -> dict[str, Any]:
        """Run the page and return its results with the time, the machine and the digest of the code."""
        code, start = self.digest(), time.process_time()
        outcome = self.run()
        return {
            "code": code,
            self.outcome: outcome,
            "seconds": time.process_time() - start,
            "machine": describe_machine(),
        }

    def store(self, results: dict[str, Any]) -> None:
        self.results.write_text(json.dumps(checksum.add_checksum(results), indent=1) + "\n", encoding="utf-8")

    def load(self) -> dict[str, Any]:
        """Load the stored results; raise if they were changed."""
        return checksum.verify_checksum(json.loads(self.results.read_text(encoding="utf-8")))

    def text(self, results: dict[str, Any]) -> str:
        """Return the text between the page's marks."""
        return self.table(results, self.own_sizes())

    def write(self, results: dict[str, Any]) -> None:
        """Write table and picture into the page; the picture holds a checksum of its results."""
        figure = self.draw(results)
        figure.savefig(self.picture, metadata={"Software": None, "Source": result_digest(results)})
        plt.close(figure)
        write_section(self.page, f"<!-- {self.name} -->", f"<!-- /{self.name} -->", self.text(results))

    def _line(self) -> re.Match[str]:
        names, numbers = ", ".join(self.sizes), ", ".join([r"(\d+)"] * len(self.sizes))
        matches = list(re.finditer(f"^{names} = {numbers}$", self.code(), re.MULTILINE))
        if len(matches) != 1:
            raise ValueError(f"expected one line of {names} in {self.page} (got {len(matches)})")
        return matches[0]


def result_digest(results: dict[str, Any]) -> str:
    """Return the checksum in the results' file."""
    return str(checksum.add_checksum(results)[checksum.KEY])
