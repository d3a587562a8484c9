"""A page whose code runs, and whose numbers are those of its code: what all tutorials share."""

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
    """A page, and how its results are shown.

    Its first code is one line of whole numbers, ``images, epochs = 1000, 6``, by which a run is large or small.
    """

    name: str
    """Of the page's file, its picture and its results."""
    sizes: tuple[str, ...]
    """The names in the page's line of numbers."""
    outcome: str
    """The name under which the page's code leaves what it found; JSON can hold it."""
    table: Callable[[dict[str, Any], tuple[int, ...]], str]
    """From results and sizes to the page's text."""
    draw: Callable[[dict[str, Any]], Figure]
    """From results to the picture."""

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
        """All of the page's Python."""
        return "\n".join(re.findall(r"```python\n(.*?)```", self.page.read_text(encoding="utf-8"), re.DOTALL))

    def digest(self) -> str:
        """By which results are seen to be of another code."""
        return hashlib.sha256(self.code().encode()).hexdigest()[:16]

    def own_sizes(self) -> tuple[int, ...]:
        """The numbers in the page's line of them."""
        return tuple(map(int, self._line().groups()))

    def ran(self, sizes: tuple[int, ...] | None = None) -> Any:
        """What the page's code finds, with its own sizes or others."""
        source = self.code()
        if sizes is not None:
            source = source.replace(self._line().group(), f"{', '.join(self.sizes)} = {', '.join(map(str, sizes))}")
        names: dict[str, Any] = {}
        exec(compile(source, str(self.page), "exec"), names)
        return names[self.outcome]

    def measure(self) -> dict[str, Any]:
        """The whole run, with what it ran on."""
        code, start = self.digest(), time.process_time()
        found = self.ran()
        return {
            "code": code,
            self.outcome: found,
            "seconds": time.process_time() - start,
            "machine": describe_machine(),
        }

    def store(self, results: dict[str, Any]) -> None:
        self.results.write_text(json.dumps(checksum.add_checksum(results), indent=1) + "\n", encoding="utf-8")

    def stored(self) -> dict[str, Any]:
        """The results there are; an error where they were changed."""
        return checksum.verify_checksum(json.loads(self.results.read_text(encoding="utf-8")))

    def text(self, results: dict[str, Any]) -> str:
        """What stands between the page's marks."""
        return self.table(results, self.own_sizes())

    def write(self, results: dict[str, Any]) -> None:
        """Table and picture into the page; by the checksum in the picture it is seen to be of other results."""
        figure = self.draw(results)
        figure.savefig(self.picture, metadata={"Software": None, "Source": result_digest(results)})
        plt.close(figure)
        write_section(self.page, f"<!-- {self.name} -->", f"<!-- /{self.name} -->", self.text(results))

    def _line(self) -> re.Match[str]:
        names, numbers = ", ".join(self.sizes), ", ".join([r"(\d+)"] * len(self.sizes))
        found = list(re.finditer(f"^{names} = {numbers}$", self.code(), re.MULTILINE))
        if len(found) != 1:
            raise ValueError(f"expected one line of {names} in {self.page} (got {len(found)})")
        return found[0]


def result_digest(results: dict[str, Any]) -> str:
    """That of the file of the results."""
    return str(checksum.add_checksum(results)[checksum.KEY])
