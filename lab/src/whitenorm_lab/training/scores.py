"""Numbers of an epoch as totals over examples, over all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torchmetrics
from torch import Tensor


class Means(torchmetrics.Metric):
    """Means by name, such as loss and accuracy, of examples that each count once, in whatever batch and process.

    Totals are added where the data are, and nothing waits for them. They can be kept, and gone on from: a run that was
    stopped in an epoch ends it with the same numbers.

    Example::

        >>> scores = Means(("loss", "accuracy"))
        >>> scores.update(3, loss=torch.tensor(1.5), accuracy=torch.tensor(2))
        >>> scores.compute()
        {'loss': 0.5, 'accuracy': 0.6666666666666666}
    """

    full_state_update = False
    totals: Tensor
    """Of the names in order, and last of the examples."""

    def __init__(self, names: Sequence[str] = ("loss",)) -> None:
        super().__init__()
        self.names = tuple(names)
        self.add_state("totals", torch.zeros(len(self.names) + 1, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, examples: int | Tensor, **totals: Tensor | float) -> None:
        """Add a batch: how many examples (or tokens) it has, and each name's total over them."""
        if set(totals) != set(self.names):
            raise ValueError(f"expected totals of {', '.join(self.names)} (got {', '.join(totals)})")
        for i, name in enumerate(self.names):
            self.totals[i] += totals[name]
        self.totals[-1] += examples

    def compute(self) -> dict[str, float]:
        """The mean of each name over all examples."""
        *totals, examples = self.totals.tolist()
        return {name: total / examples for name, total in zip(self.names, totals, strict=True)}

    def total(self, name: str) -> Tensor:
        """A name's total so far, in this process."""
        return self.totals[self.names.index(name)]

    def kept(self) -> Tensor:
        """The totals as they stand, over all processes."""
        with self.sync_context():
            return self.totals.clone()

    def load(self, kept: Tensor) -> None:
        """Go on from totals."""
        self.totals.copy_(kept)
        self._update_count = 1
