"""Results of an inspection: one report per norm, as a table, rows, a data frame, JSON or a page."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, overload

import torch
from torch import Tensor

from whitenorm.diagnostics.page import html_page


@dataclass
class LayerReport:
    """Measures of one norm on one batch; missing values are None or NaN.

    Names that end in ``_before`` describe the norm's input, names that end in ``_after`` its output:

    - ``condition_*``: λ_max/λ_min of the features' covariance, over the directions that are not dead
    - ``condition90_*``: λ_max/λ_min over the 90 % of these directions that vary most (GW, figure 2)
    - ``dead_*``: number of dead directions (:func:`dead_directions`)
    - ``correlation_*``: mean absolute correlation of the features
    - ``spectrum_*``: eigenvalues of the covariance, largest first; of at most the first 2048 channels
    - ``correlations_*``: correlation matrix of the first 64 channels

    and for the norm as a whole:

    - ``disturbance``: SND at this batch size, for batch methods
    - ``drift``: distance of the batch statistics from the running statistics, in standard deviations of the latter
    - ``gradient_ratio``: norm of the input's gradient over that of the output's
    - ``time_share``, ``memory_share``: share of the model's forward time, and of its tensors saved for backward
    - ``advice``: problems of the set-up, and what to do
    """

    name: str
    kind: str
    width: int
    groups: int
    condition_before: float = math.nan
    condition_after: float = math.nan
    condition90_before: float = math.nan
    condition90_after: float = math.nan
    dead_before: int | None = None
    dead_after: int | None = None
    correlation_before: float = math.nan
    correlation_after: float = math.nan
    disturbance: float | None = None
    drift: float | None = None
    gradient_ratio: float | None = None
    time_share: float | None = None
    memory_share: float | None = None
    spectrum_before: list[float] = field(default_factory=list, repr=False)
    spectrum_after: list[float] = field(default_factory=list, repr=False)
    # Not compared, because == of two matrices has no single truth value.
    correlations_before: Tensor = field(default_factory=lambda: torch.zeros(0, 0), repr=False, compare=False)
    correlations_after: Tensor = field(default_factory=lambda: torch.zeros(0, 0), repr=False, compare=False)
    advice: list[str] = field(default_factory=list)


COLUMNS = {
    "name": "name",
    "kind": "kind",
    "width": "C",
    "groups": "groups",
    "condition_before": "κ before",
    "condition_after": "after",
    "condition90_before": "κ90 before",
    "condition90_after": "after",
    "dead_before": "dead before",
    "dead_after": "after",
    "correlation_before": "corr. before",
    "correlation_after": "after",
    "disturbance": "SND",
    "drift": "drift",
    "gradient_ratio": "gradient",
    "time_share": "time",
    "memory_share": "memory",
}


class Inspection(tuple[LayerReport, ...]):
    """Reports of all norms of a model, in the order they ran; prints as a table with advice.

    Slices are inspections too.
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> LayerReport: ...
    @overload
    def __getitem__(self, index: slice) -> Inspection: ...
    def __getitem__(self, index: SupportsIndex | slice) -> LayerReport | Inspection:
        return Inspection(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __str__(self) -> str:
        rows = [list(COLUMNS.values())] + [[_format_cell(key, getattr(r, key)) for key in COLUMNS] for r in self]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines + [f"{', '.join(names)}: {text}" for text, names in self.advice().items()])

    def advice(self) -> dict[str, list[str]]:
        """Return each distinct piece of advice with the names of the layers that it is for."""
        names: dict[str, list[str]] = {}
        for report in self:
            for text in report.advice:
                names.setdefault(text, []).append(report.name or report.kind)
        return names

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row per layer, with its numbers and advice."""
        return [{key: getattr(report, key) for key in (*COLUMNS, "advice")} for report in self]

    def to_frame(self) -> Any:
        """Return a ``pandas.DataFrame`` with one row per layer."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_frame needs pandas, which comes with the inspect extra: pip install 'whitenorm[inspect]'",
                name=error.name,
            ) from error
        return pandas.DataFrame(self.to_dicts(), columns=[*COLUMNS, "advice"])

    def to_html(self, title: str = "Norms of a model") -> str:
        """Return one page with plots that opens without a network; :func:`html_page` compares several inspections."""
        return html_page({"": self}, title)

    def to_json(self) -> str:
        """Return the rows as JSON, with null for infinity and NaN, which JSON does not have."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in self.to_dicts()
        ]
        return json.dumps(rows, indent=1)


def _format_cell(key: str, value: Any) -> str:
    if value is None or (key.startswith("condition") and math.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
