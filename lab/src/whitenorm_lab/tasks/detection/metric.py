"""COCO's average precision and recall, computed by pycocotools through torchmetrics."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

# COCO's columns and their names in torchmetrics.
COLUMNS = {
    "ap": "map",
    "ap50": "map_50",
    "ap75": "map_75",
    "ap_small": "map_small",
    "ap_medium": "map_medium",
    "ap_large": "map_large",
    "ar1": "mar_1",
    "ar10": "mar_10",
    "ar100": "mar_100",
    "ar_small": "mar_small",
    "ar_medium": "mar_medium",
    "ar_large": "mar_large",
}
# Probability from which a pixel belongs to a mask.
_MASK_THRESHOLD = 0.5


class AveragePrecision(MeanAveragePrecision):
    """All of COCO's columns in percent, such as ``ap50``, and with masks also ``mask_ap50`` and so on.

    A column without objects, such as ``ap_small`` if no object is small, is NaN.

    Example::

        >>> metric = AveragePrecision(masks=False)
        >>> target = {"boxes": torch.tensor([[0.0, 0, 40, 40]]), "labels": torch.tensor([1])}
        >>> metric.update([{**target, "scores": torch.tensor([0.9])}], [target])
        >>> columns = metric.compute()
        >>> round(columns["ap"]), columns["ap_small"]
        (100, nan)
    """

    def __init__(self, masks: bool) -> None:
        super().__init__(iou_type=("bbox", "segm") if masks else "bbox", backend="pycocotools")
        self.masks = masks

    def update(self, preds: list[dict[str, Tensor]], target: list[dict[str, Tensor]]) -> None:
        """Add the outputs of a torchvision detector and the targets of the same images."""
        super().update([_select_output(row) for row in preds], [_with_boolean_masks(row) for row in target])

    def compute(self) -> dict[str, Any]:
        """Return the columns for all images."""
        values = super().compute()
        prefixes = {"": "bbox_", "mask_": "segm_"} if self.masks else {"": ""}
        return {
            f"{prefix}{column}": _to_percent(values[f"{metric_prefix}{name}"])
            for prefix, metric_prefix in prefixes.items()
            for column, name in COLUMNS.items()
        }


def _select_output(output: dict[str, Tensor]) -> dict[str, Tensor]:
    selection = {name: output[name] for name in ("boxes", "scores", "labels")}
    return {**selection, "masks": output["masks"].squeeze(1) > _MASK_THRESHOLD} if "masks" in output else selection


def _with_boolean_masks(target: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**target, "masks": target["masks"].bool()} if "masks" in target else target


def _to_percent(value: Tensor) -> float:
    """Return percent, or NaN for the -1 that torchmetrics returns for a column without objects."""
    return 100 * float(value) if value >= 0 else math.nan
