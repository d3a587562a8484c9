"""Metric of semantic segmentation: mean intersection over union and pixel accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from whitenorm_lab.tasks.segmentation.classes import IGNORE

IOU = "iou_"


class PixelScores(MulticlassConfusionMatrix):
    """Loss, mIoU, pixel accuracy and the IoU of each class, over all labeled pixels of a data set.

    A class's intersection over union is ``tp / (tp + fp + fn)`` over the pixels of all images, as in the benchmarks of
    ADE20K, Cityscapes and CamVid. Classes that neither occur nor are predicted are left out of the mean.

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
        # Labels are already checked when they are read.
        super().__init__(len(names), ignore_index=IGNORE, validate_args=False)
        self.names = tuple(names)
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor, loss: Tensor) -> None:  # type: ignore[override]
        """Add a batch: scores ``(N, classes, H, W)``, labels ``(N, H, W)``, and the mean loss of labeled pixels."""
        super().update(scores.argmax(1), labels.long())
        self.loss += loss * (labels != IGNORE).sum()

    def compute(self) -> dict[str, float]:  # type: ignore[override]
        """Return all scores by name."""
        counts = super().compute().double()  # label, prediction
        right, pixels = counts.diagonal(), counts.sum()
        union = counts.sum(0) + counts.sum(1) - right
        occurs = union > 0
        ious = right / union.clamp_min(1)
        per_class = {IOU + name.replace(" ", "_"): float(ious[i]) for i, name in enumerate(self.names) if occurs[i]}
        return {
            "loss": float(self.loss / pixels),
            "miou": float(ious[occurs].mean()),
            "accuracy": float(right.sum() / pixels),
            **per_class,
        }
