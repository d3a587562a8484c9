"""Means over the examples of an epoch, over all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torchmetrics
from torch import Tensor


class Means(torchmetrics.Metric):
    """Means of several scores over examples, where each example has the same weight in any batch and process.

    Totals are added on the device without synchronization. Their state can be stored, so that a run that stops in the
    middle of an epoch and resumes ends with the same numbers.

    Example::

        >>> scores = Means(("loss", "accuracy"))
        >>> scores.update(3, loss=torch.tensor(1.5), accuracy=torch.tensor(2))
        >>> scores.compute()
        {'loss': 0.5, 'accuracy': 0.6666666666666666}
    """

    full_state_update = False
    totals: Tensor
    """Totals in the order of the names, then the number of examples."""

    def __init__(self, names: Sequence[str] = ("loss",)) -> None:
        super().__init__()
        self.names = tuple(names)
        self.add_state("totals", torch.zeros(len(self.names) + 1, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, examples: int | Tensor, **totals: Tensor | float) -> None:
        """Add a batch: its number of examples (or tokens), and the total of each score over them."""
        if set(totals) != set(self.names):
            raise ValueError(f"expected totals of {', '.join(self.names)} (got {', '.join(totals)})")
        for i, name in enumerate(self.names):
            self.totals[i] += totals[name]
        self.totals[-1] += examples

    def compute(self) -> dict[str, float]:
        """Return the mean of each score over all examples."""
        *totals, examples = self.totals.tolist()
        return {name: total / examples for name, total in zip(self.names, totals, strict=True)}

    def total(self, name: str) -> Tensor:
        """Return the total of a score in this process."""
        return self.totals[self.names.index(name)]

    def gather_totals(self) -> Tensor:
        """Return a copy of the totals over all processes."""
        with self.sync_context():
            return self.totals.clone()

    def load_totals(self, totals: Tensor) -> None:
        """Continue from totals of :meth:`gather_totals`."""
        self.totals.copy_(totals)
        self._update_count = 1
