"""Configurations of the Group Whitening paper on COCO, with the schedule and sizes of maskrcnn-benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whitenorm_lab.tasks.detection.config import Detection


@dataclass
class GwCoco(Detection):
    """Faster R-CNN with a ResNet-50 and FPN on COCO, GW in backbone, FPN and box head (GW, tab. 4).

    Expected: box AP 39.60 %, AP50 61.12, AP75 43.25; with --box-head 2fc --fpn-norm none --head-norm none 38.13.
    BN, frozen: --norm bn --where all --fpn-norm none --head-norm none --freeze-at 2 36.39, with 2fc 36.31.
    GN: --norm gn --where all --fpn-norm gn --head-norm gn 37.86, with 2fc and no other norms 36.62.
    Not stated: the number of frozen stages (here as in maskrcnn-benchmark: none, but two with BN: --freeze-at 2).
    Cost: 1980 PFLOPs.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train gw-coco --weights RUN, the
    folder of whitenorm-lab train gw-imagenet
    """

    norm: str = "gw"
    where: str = "s1-b2"
    freeze_bn: bool = True
    box_head: Literal["2fc", "4conv1fc"] = "4conv1fc"
    fpn_norm: str = "gw"
    head_norm: str = "gw"
    steps: int | None = 90_000
    milestone_steps: tuple[int, ...] = (60_000, 80_000)
    warmup_steps: int = 500
    warmup_from: float = 1 / 3
    bias_factor: float = 2.0


@dataclass
class GwCocoMask(GwCoco):
    """Mask R-CNN with a ResNeXt-101 and FPN on COCO, GW in all its parts (GW, tab. 5).

    Expected: box AP 44.41 %, AP50 65.36, AP75 48.67, mask AP 39.17, AP50 62.13, AP75 41.95. BN, frozen: --norm bn
    --where all --fpn-norm none --head-norm none --mask-norm none --freeze-at 2, box AP 42.24 and mask AP 37.53. GN:
    --norm gn --where all --fpn-norm gn --head-norm gn --mask-norm gn, 42.18 and 37.54.
    Not stated: the width of the ResNeXt (here torchvision's 32×8d).
    Cost: 3837 PFLOPs.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train gw-coco-mask --weights RUN, the
    folder of whitenorm-lab train gw-imagenet --net resnext101_32x8d
    """

    net: str = "resnext101_32x8d"
    masks: bool = True
    mask_norm: str = "gw"
    batch_size: int = 8
    lr: float = 0.01
    steps: int | None = 180_000
    milestone_steps: tuple[int, ...] = (120_000, 160_000)


@dataclass
class GwCocoScratch(GwCoco):
    """Faster R-CNN with a ResNet-50 from scratch with two images per process, with BN and GW mixed (GW, sec. 5.2).

    Expected: box AP 28.37 %; with --norm bn --where all 25.10, --norm gn --where all 28.19, --where all 28.79.
    Not stated: the box head (here 2fc, with norms in the backbone only).
    Cost: 1474 PFLOPs.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train gw-coco-scratch
    """

    freeze_bn: bool = False
    box_head: Literal["2fc", "4conv1fc"] = "2fc"
    fpn_norm: str = "none"
    head_norm: str = "none"


PRESETS: dict[str, type[Detection]] = {
    "gw-coco": GwCoco,
    "gw-coco-mask": GwCocoMask,
    "gw-coco-scratch": GwCocoScratch,
}
