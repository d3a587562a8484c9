"""Loss and accuracy as sums over images, over all processes."""

from __future__ import annotations

import torch
import torchmetrics
from torch import Tensor

_NAMES = ("loss", "correct", "top5", "images")
# Of fewer classes, the right one is hardly ever not among five.
_CLASSES_FOR_TOP5 = 50


class Scores(torchmetrics.Metric):
    """Mean loss, accuracy, and top-5 accuracy where there are many classes.

    Every image counts once, however it came to which process.

    Example::

        >>> scores = Scores(3)
        >>> scores.update(torch.tensor(0.5), torch.eye(3), torch.tensor([0, 1, 1]))
        >>> scores.compute()
        {'loss': 0.5, 'accuracy': 0.6666666666666666}
    """

    full_state_update = False
    loss: Tensor
    correct: Tensor
    top5: Tensor
    images: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.has_top5 = classes >= _CLASSES_FOR_TOP5
        for name in _NAMES:
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch with this mean loss."""
        self.loss += loss * len(labels)
        self.correct += (logits.argmax(1) == labels).sum()
        self.images += len(labels)
        if self.has_top5:
            self.top5 += (logits.topk(5).indices == labels.unsqueeze(1)).sum()

    def compute(self) -> dict[str, float]:
        """Means over all images."""
        means = {"loss": float(self.loss / self.images), "accuracy": float(self.correct / self.images)}
        return {**means, "top5": float(self.top5 / self.images)} if self.has_top5 else means

    def sums(self) -> dict[str, Tensor]:
        """The sums as they stand, over all processes."""
        with self.sync_context():
            return {name: getattr(self, name).clone() for name in _NAMES}

    def load(self, sums: dict[str, Tensor]) -> None:
        """Go on from sums."""
        for name in _NAMES:
            getattr(self, name).copy_(sums[name])
        self._update_count = 1
