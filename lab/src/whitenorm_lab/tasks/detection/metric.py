"""COCO's average precision and recall, by pycocotools through torchmetrics."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

# COCO's columns, and what torchmetrics calls them.
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
# A mask is where a pixel is more likely inside than not.
_INSIDE = 0.5


class AveragePrecision(MeanAveragePrecision):
    """All of COCO's columns in percent, as ``ap50``, and ``mask_ap50`` of masks if there are some.

    A column that nothing counts for, such as that of small objects where there are none, is NaN.

    Example::

        >>> metric = AveragePrecision(masks=False)
        >>> there = {"boxes": torch.tensor([[0.0, 0, 40, 40]]), "labels": torch.tensor([1])}
        >>> metric.add([{**there, "scores": torch.tensor([0.9])}], [there])
        >>> found = metric.compute()
        >>> round(found["ap"]), found["ap_small"]
        (100, nan)
    """

    def __init__(self, masks: bool) -> None:
        super().__init__(iou_type=("bbox", "segm") if masks else "bbox", backend="pycocotools")
        self.masks = masks

    def add(self, found: list[dict[str, Tensor]], targets: list[dict[str, Tensor]]) -> None:
        """Images: what a detector found in them, and what there is."""
        self.update([_found(one) for one in found], [_there(one) for one in targets])

    def compute(self) -> dict[str, Any]:
        """The columns of all images so far."""
        values = super().compute()
        prefixes = {"": "bbox_", "mask_": "segm_"} if self.masks else {"": ""}
        return {
            f"{ours}{column}": _percent(values[f"{theirs}{name}"])
            for ours, theirs in prefixes.items()
            for column, name in COLUMNS.items()
        }


def _found(one: dict[str, Tensor]) -> dict[str, Tensor]:
    taken = {name: one[name] for name in ("boxes", "scores", "labels")}
    return {**taken, "masks": one["masks"].squeeze(1) > _INSIDE} if "masks" in one else taken


def _there(one: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**one, "masks": one["masks"].bool()} if "masks" in one else one


def _percent(value: Tensor) -> float:
    """torchmetrics says -1 where there is nothing to count."""
    return 100 * float(value) if value >= 0 else math.nan
