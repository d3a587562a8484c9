"""What a run of detection is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig

FROZEN = "frozen-bn"
FOLDER = "coco:"


@dataclass
class Detection(RunConfig, NormOptions):
    """Train Faster R-CNN, or with --masks Mask R-CNN, with a norm of its own in backbone, FPN, box head and mask head.

    A run that was stopped goes on where it was when the same command is given again.
    """

    task: ClassVar[str] = "detection"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "norm", "where")

    net: str = "resnet50"
    """The backbone, a residual net of torchvision: resnet18, resnet50, resnext101_32x8d, …"""
    weights: Path | None = None
    """Of the backbone: a state dict of the classifier, of this norm or of BatchNorm, or a run's folder."""
    freeze_bn: bool = False
    """The backbone's BatchNorms keep the statistics, γ and β of these weights."""
    freeze_at: int = 0
    """Do not train so many of the backbone's first stages, of which there are five; 1 is the stem."""
    masks: bool = False
    """Find masks too: Mask R-CNN."""
    box_head: Literal["2fc", "4conv1fc"] = "2fc"
    """Two linear layers, or four convolutions and a linear layer, which alone can have a norm."""
    fpn_norm: str = "none"
    """none, frozen-bn, or a norm as in --norm, with its options where it is the same one."""
    head_norm: str = "none"
    """Of the box head, likewise."""
    mask_norm: str = "none"
    """Of the mask head, likewise."""
    fpn_channels: int = 256
    """Of the FPN, and of the convolutions in the heads."""
    head_width: int = 1024
    """Of the linear layers of the box head."""

    dataset: str = "coco"
    """coco, coco128, or coco:PATH with annotations/instances_train*.json and images, or instances.json and images/."""
    min_size: int = 800
    """Pixels that the shorter side is made, where the longer one allows."""
    max_size: int = 1333
    """Pixels that the longer side is at most."""
    flip: bool = True
    """Flip half of the training images."""
    anchor_size: int = 32
    """A side of the smallest boxes that are looked for; those of the next levels double."""
    proposals: int = 2000
    """Boxes of an image that training chooses from."""
    rois: int = 512
    """Boxes of an image that the box head is trained on."""
    train_images: int | None = None
    """Train on so many images, drawn by the seed; all that have objects if not given."""
    test_images: int | None = None
    """Test on the first so many; all if not given."""

    epochs: int = 13
    batch_size: int = 16
    lr: float = 0.02
    weight_decay: float = 1e-4
    bias_factor: float = 1.0
    """lr × this for biases; other than 1, they have no weight decay either, as in maskrcnn-benchmark."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(0, "freeze_at", "bias_factor")
        self.check_at_least(1, "min_size", "max_size", "anchor_size", "proposals", "rois", "fpn_channels", "head_width")
        self.check_at_least(1, "train_images", "test_images")
        if self.freeze_at > 5:
            raise ValueError(f"expected freeze_at from 0 to 5, the stages there are (got {self.freeze_at})")
        if self.box_head == "2fc" and self.head_norm != "none":
            raise ValueError(f"expected --box-head 4conv1fc for a norm in it (got 2fc, with {self.head_norm})")
        if self.mask_norm != "none" and not self.masks:
            raise ValueError(f"expected --masks for a norm in the mask head (got none, with {self.mask_norm})")

    def for_dataset(self, dataset: str) -> Detection:
        """The same for another set."""
        return replace(self, dataset=dataset, train_images=None)
