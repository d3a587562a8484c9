"""How well pixels are classified: mean intersection over union, and the share of pixels that are right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from whitenorm_lab.tasks.segmentation.classes import IGNORE

IOU = "iou_"


class PixelScores(MulticlassConfusionMatrix):
    """Loss, mIoU, pixel accuracy and the IoU of each class, over all pixels of a set that have a class.

    A class's intersection over union is ``tp / (tp + fp + fn)`` of the pixels of all images together, as ADE20K's,
    Cityscapes' and CamVid's own is. Classes that are neither there nor predicted are left out of the mean.

    Example::

        >>> scores = PixelScores(["sky", "road"])
        >>> scores.update(torch.tensor([[[2.0, 2.0, 2.0, 0.0]], [[0.0, 0.0, 0.0, 2.0]]]).unsqueeze(0),
        ...     torch.tensor([[[0, 0, 1, 255]]], dtype=torch.uint8), loss=torch.tensor(0.5))
        >>> {name: round(value, 3) for name, value in scores.compute().items()}
        {'loss': 0.5, 'miou': 0.333, 'accuracy': 0.667, 'iou_sky': 0.667, 'iou_road': 0.0}
    """

    full_state_update = False
    loss: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        # What is read is checked as it is read.
        super().__init__(len(names), ignore_index=IGNORE, validate_args=False)
        self.names = tuple(names)
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor, loss: Tensor) -> None:  # type: ignore[override]
        """Add a batch: scores ``(N, classes, H, W)``, labels ``(N, H, W)``, and the mean loss of labelled pixels."""
        super().update(scores.argmax(1), labels.long())
        self.loss += loss * (labels != IGNORE).sum()

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """All numbers."""
        counts = super().compute().double()  # label, prediction
        right, pixels = counts.diagonal(), counts.sum()
        union = counts.sum(0) + counts.sum(1) - right
        there = union > 0
        ious = right / union.clamp_min(1)
        each = {IOU + name.replace(" ", "_"): float(ious[i]) for i, name in enumerate(self.names) if there[i]}
        return {
            "loss": float(self.loss / pixels),
            "miou": float(ious[there].mean()),
            "accuracy": float(right.sum() / pixels),
            **each,
        }
