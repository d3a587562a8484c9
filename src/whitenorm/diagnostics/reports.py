"""What an inspection says: a report a norm, and all of them as a table, rows, a frame, JSON and a page."""

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
    """What one norm does at this batch.

    ``condition_*`` are λ_max/λ_min of the features, ``condition90_*`` λ_max over the eigenvalue that 90 % of them are
    not below (GW, figure 2), both over the directions that are not dead; ``dead_*`` is the number of those that are
    (:func:`dead_directions`). ``correlation_*`` are the features' mean absolute correlation, ``disturbance`` the SND at
    this batch size (batch methods), ``drift`` how far the batch's statistics are from the population's, in standard
    deviations of the latter, ``gradient_ratio`` the norm of the input's gradient over the output's, and ``time_share``
    and ``memory_share`` the layer's part of the model's forward time and of what is kept for backward. ``spectrum_*``
    are the eigenvalues of the features' covariance, from the largest, and ``correlations_*`` the correlation matrix of
    the first 64 channels. Of layers wider than 2048 channels, the first 2048 are looked at. What was not measured is
    None or NaN.
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
    # One truth value is not to be had of two matrices.
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
    """The reports of all norms, in the order they ran; printed, a table and advice. Slices are inspections too."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> LayerReport: ...
    @overload
    def __getitem__(self, index: slice) -> Inspection: ...
    def __getitem__(self, index: SupportsIndex | slice) -> LayerReport | Inspection:
        return Inspection(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __str__(self) -> str:
        rows = [list(COLUMNS.values())] + [[_cell(key, getattr(r, key)) for key in COLUMNS] for r in self]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines + [f"{', '.join(names)}: {words}" for words, names in self.advice().items()])

    def advice(self) -> dict[str, list[str]]:
        """What is off, with the names of the layers of which it is said, each thing once."""
        found: dict[str, list[str]] = {}
        for report in self:
            for words in report.advice:
                found.setdefault(words, []).append(report.name or report.kind)
        return found

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a layer: its numbers and advice."""
        return [{key: getattr(report, key) for key in (*COLUMNS, "advice")} for report in self]

    def to_frame(self) -> Any:
        """A ``pandas.DataFrame``, a row a layer."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_frame needs pandas, which comes with the inspect extra: pip install 'whitenorm[inspect]'",
                name=error.name,
            ) from error
        return pandas.DataFrame(self.to_dicts(), columns=[*COLUMNS, "advice"])

    def to_html(self, title: str = "Norms of a model") -> str:
        """One page with plots that opens without a network; :func:`html_page` puts several inspections on one."""
        return html_page({"": self}, title)

    def to_json(self) -> str:
        """The rows as JSON; what is infinite becomes null, for which JSON has no number."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in self.to_dicts()
        ]
        return json.dumps(rows, indent=1)


def _cell(key: str, value: Any) -> str:
    if value is None or (key.startswith("condition") and math.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
