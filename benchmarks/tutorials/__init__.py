"""The tutorials of docs/tutorials, a module a page: what its code found, as the page's table and picture."""

from __future__ import annotations

from benchmarks.tutorials import features, finetuning, self_supervised
from benchmarks.tutorials.page import Tutorial

TUTORIALS: dict[str, Tutorial] = {
    module.TUTORIAL.name: module.TUTORIAL for module in (features, finetuning, self_supervised)
}
