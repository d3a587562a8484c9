"""The tutorials of docs/tutorials: each module turns the results of a page's code into its table and picture."""

from __future__ import annotations

from benchmarks.tutorials import features, finetuning, self_supervised
from benchmarks.tutorials.page import Tutorial

TUTORIALS: dict[str, Tutorial] = {
    module.TUTORIAL.name: module.TUTORIAL for module in (features, finetuning, self_supervised)
}
