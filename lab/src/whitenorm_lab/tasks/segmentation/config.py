"""What a run of semantic segmentation is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Segment(RunConfig, NormOptions):
    """Train a net that gives every pixel a class: a dilated ResNet or net of timm, PSP or FCN head, any norm.

    The run's folder has predictions.png at the end: images, their labels and predictions.
    """

    task: ClassVar[str] = "segmentation"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "head", "norm", "where")

    net: str = "timm:resnet18"
    """The backbone: torchvision's resnet50 and deeper ones, or timm:NAME, such as timm:tf_efficientnet_lite0."""
    width: int | None = None
    """Channels of the first stage of timm's ResNets; 64 if not given."""
    stride: Literal[8, 16, 32] = 8
    """Pixels between the last features: what would halve them further is dilated."""
    head: Literal["psp", "fcn"] = "psp"
    """Pyramid pooling, or a convolution and a classifier."""
    auxiliary: float = 0.4
    """Weight of the loss of a second head, on the features a stage before the last; 0 is none."""
    balance: float = 0.0
    """Classes weigh share^-balance in the loss, of their share of the training pixels: 0 all alike, 1 as much each."""
    weights: str | None = None
    """Of the backbone: a file of its state dict, or imagenet for those of timm:tf_efficientnet_lite0; none: drawn."""

    dataset: str = "camvid"
    """camvid, ade20k, cityscapes, or folder:PATH with classes.txt, train/, train_labels/, val/ and val_labels/."""
    crop: int = 160
    """Side of the square that is trained on."""
    scales: tuple[float, float] = (0.5, 2.0)
    """Images are scaled at random between these before they are cropped."""
    flip: bool = True
    """Half of the images are flipped."""
    train_images: int | None = None
    """Train on so many images, drawn by the seed; all if not given."""
    test_images: int | None = None
    """Test on so many, spread evenly over the set; all if not given."""
    test: Literal["whole", "sliding"] = "whole"
    """Whole images, or windows of the crop's size that overlap by a third."""
    test_batch: int = 1
    """Images at once in a test, over all processes: more than 1 if they are of one size."""
    validate: bool = False
    """Test on the validation images too, of sets that have them beside test images."""

    epochs: int = 50
    batch_size: int = 16
    lr: float = 0.01
    head_lr: float = 1.0
    """Learning rate of the heads, in multiples of lr."""
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

    Expected: mIoU 39.8 with 14 layers, 39.6 with 7 (--where sw-7); of BN the supplement has none (--norm bn --where all
    --solver None).
    The supplement gives net, places and groups of 16. The rest is PSPNet's usual set-up: its head on ResNet-50 at
    stride 8, from ImageNet weights (--weights FILE, of the same norms where there are such), auxiliary loss 0.4, batch
    16 with synchronised statistics, lr 0.01 (heads ten times that) with power 0.9, weight decay 1e-4, scales 0.5 to 2,
    flips, crops of 473, 100 epochs, sliding windows. Without its rotation and blur, and tested at the images' own size.
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

    Expected: mIoU 76.2 with 14 layers, 75.7 with 7 (--where sw-7); of BN the supplement has none (--norm bn --where all
    --solver None).
    Crops of 713 and batches of 16 as in the supplement's table 2; the rest, and 200 epochs, as for ADE20K.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train sw-cityscapes --data ROOT --weights FILE --sync
    """

    dataset: str = "cityscapes"
    crop: int = 713
    epochs: int = 200
    test_every: int = 20


COMMANDS: dict[str, type[Segment]] = {"segmentation": Segment, "sw-ade20k": SwAde20k, "sw-cityscapes": SwCityscapes}
