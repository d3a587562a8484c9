"""Configuration of detection runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig

FROZEN = "frozen-bn"
FOLDER = "coco:"


@dataclass
class Detection(RunConfig, NormOptions):
    """Train Faster R-CNN, or with --masks Mask R-CNN, with separate norms in backbone, FPN, box head and mask head.

    Give the same command again to resume a stopped run.
    """

    task: ClassVar[str] = "detection"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "norm", "where")

    net: str = "resnet50"
    """Backbone, a residual network of torchvision: resnet18, resnet50, resnext101_32x8d, …"""
    weights: Path | None = None
    """Initial backbone weights: state dict of a classifier with this norm or BatchNorm, or the folder of a run."""
    freeze_bn: bool = False
    """Freeze the statistics, γ and β of the backbone's BatchNorms."""
    freeze_at: int = 0
    """Number of the backbone's five stages to freeze, from the first, which is the stem."""
    masks: bool = False
    """Predict masks as well: Mask R-CNN."""
    box_head: Literal["2fc", "4conv1fc"] = "2fc"
    """Two linear layers, or four convolutions and a linear layer; only the latter can have a norm."""
    fpn_norm: str = "none"
    """Norm of the FPN: none, frozen-bn, or one of --norm; the options of --norm apply if it is the same."""
    head_norm: str = "none"
    """Norm of the box head, likewise."""
    mask_norm: str = "none"
    """Norm of the mask head, likewise."""
    fpn_channels: int = 256
    """Channels of the FPN and of the convolutions in the heads."""
    head_width: int = 1024
    """Width of the linear layers of the box head."""

    dataset: str = "coco"
    """coco, coco128, or coco:PATH, a folder with annotations/instances_train*.json or instances.json, and images."""
    min_size: int = 800
    """Length of the shorter image side in pixels, if max_size allows."""
    max_size: int = 1333
    """Maximum length of the longer image side in pixels."""
    flip: bool = True
    """Flip half of the training images."""
    anchor_size: int = 32
    """Side length of the smallest anchors; it doubles at each level."""
    proposals: int = 2000
    """Region proposals per image in training."""
    rois: int = 512
    """Regions per image that the box head is trained on."""
    train_images: int | None = None
    """Number of training images, drawn by the seed; default: all with objects."""
    test_images: int | None = None
    """Number of test images, from the first; default: all."""

    epochs: int = 13
    batch_size: int = 16
    lr: float = 0.02
    weight_decay: float = 1e-4
    bias_factor: float = 1.0
    """Learning rate of biases relative to lr. If not 1, biases have no weight decay, as in maskrcnn-benchmark."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(0, "freeze_at", "bias_factor")
        self.check_at_least(1, "min_size", "max_size", "anchor_size", "proposals", "rois", "fpn_channels", "head_width")
        self.check_at_least(1, "train_images", "test_images")
        if self.freeze_at > 5:
            raise ValueError(f"expected freeze_at from 0 to 5, the number of stages (got {self.freeze_at})")
        if self.box_head == "2fc" and self.head_norm != "none":
            raise ValueError(
                f"expected --box-head 4conv1fc for a norm in the box head (got 2fc, with {self.head_norm})"
            )
        if self.mask_norm != "none" and not self.masks:
            raise ValueError(f"expected --masks for a norm in the mask head (got no masks, with {self.mask_norm})")

    def for_dataset(self, dataset: str) -> Detection:
        """Return this configuration for another data set."""
        return replace(self, dataset=dataset, train_images=None)
