"""Configuration and presets of semantic segmentation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Segment(RunConfig, NormOptions):
    """Train a semantic segmentation net: a dilated ResNet or timm model, a PSP or FCN head, and any norm.

    At the end, predictions.png in the run's folder shows test images, their labels and predictions.
    """

    task: ClassVar[str] = "segmentation"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "head", "norm", "where")

    net: str = "timm:resnet18"
    """Backbone: torchvision's resnet50 or a deeper one, or timm:NAME, such as timm:tf_efficientnet_lite0."""
    width: int | None = None
    """Channels of the first stage of timm's ResNets; 64 by default."""
    stride: Literal[8, 16, 32] = 8
    """Output stride of the backbone; dilation replaces further strides."""
    head: Literal["psp", "fcn"] = "psp"
    """psp: pyramid pooling; fcn: a convolution and a classifier."""
    auxiliary: float = 0.4
    """Weight of the loss of an auxiliary head on the second-to-last stage; 0 omits it."""
    balance: float = 0.0
    """Weight classes by share^-balance in the loss, with share their part of the training pixels; 0 weights all pixels
    equally, 1 all classes."""
    weights: str | None = None
    """Initial weights of the backbone: a file of its state dict, or imagenet for timm:tf_efficientnet_lite0; random by
    default."""

    dataset: str = "camvid"
    """camvid, ade20k, cityscapes, or folder:PATH with classes.txt, train/, train_labels/, val/ and val_labels/."""
    crop: int = 160
    """Height and width of training crops."""
    scales: tuple[float, float] = (0.5, 2.0)
    """Range of the random scaling before cropping."""
    flip: bool = True
    """Flip half of the training images."""
    train_images: int | None = None
    """Train on this many images, drawn by the seed; by default on all."""
    test_images: int | None = None
    """Test on this many images, evenly spaced in the data set; by default on all."""
    test: Literal["whole", "sliding"] = "whole"
    """Test on whole images, or on windows of the crop's size that overlap by a third."""
    test_batch: int = 1
    """Images per test batch over all processes; more than 1 requires images of one size."""
    validate: bool = False
    """Also test on the validation images of a data set that has both."""

    epochs: int = 50
    batch_size: int = 16
    lr: float = 0.01
    head_lr: float = 1.0
    """Learning rate of the heads, as a multiple of lr."""
    weight_decay: float = 1e-4
    schedule: Schedule = "poly"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "crop", "width", "train_images", "test_images", "test_batch")
        self.check_at_least(0, "auxiliary", "balance", "head_lr")
        self.check_zero_or_several("batch_size")
        if not 0 < self.scales[0] <= self.scales[1]:
            raise ValueError(f"expected scales above 0 in rising order (got {self.scales})")

    def with_batch_size(self, examples: int) -> Segment:
        return replace(self, test_batch=examples)


@dataclass
class SwAde20k(Segment):
    """ADE20K, ResNet-50 with SW at norms 1, 3, 6, …, 39 (SW, app. B and C).

    Expected: mIoU 39.8 with 14 layers, 39.6 with 7 (--where sw-7); the supplement gives none for BN (--norm bn --where
    all --solver None).
    The supplement gives net, places and groups of 16. The rest is PSPNet's usual setup: its head on ResNet-50 at
    stride 8, from ImageNet weights (--weights FILE, with the same norms if available), auxiliary loss 0.4, batch 16
    with synchronized statistics, lr 0.01 (ten times that for the heads) with power 0.9, weight decay 1e-4, scales 0.5
    to 2, flips, crops of 473, 100 epochs, sliding windows; but no rotation and blur, and tests at the original size.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train sw-ade20k --data ROOT --weights FILE --sync
    """

    net: str = "resnet50"
    norm: str = "sw"
    where: str = "sw-14"
    solver: str | None = "zca"
    dataset: str = "ade20k"
    crop: int = 473
    test: Literal["whole", "sliding"] = "sliding"
    epochs: int = 100
    head_lr: float = 10.0
    test_every: int = 10


@dataclass
class SwCityscapes(SwAde20k):
    """Cityscapes, ResNet-50 with SW at norms 1, 3, 6, …, 39 (SW, app. B and C).

    Expected: mIoU 76.2 with 14 layers, 75.7 with 7 (--where sw-7); the supplement gives none for BN (--norm bn --where
    all --solver None).
    Crops of 713 and batches of 16 are from the supplement's table 2; the rest is as for ADE20K, with 200 epochs.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train sw-cityscapes --data ROOT --weights FILE --sync
    """

    dataset: str = "cityscapes"
    crop: int = 713
    epochs: int = 200
    test_every: int = 20


COMMANDS: dict[str, type[Segment]] = {"segmentation": Segment, "sw-ade20k": SwAde20k, "sw-cityscapes": SwCityscapes}
