"""Configuration of image classification."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig

FOLDER = "imagefolder:"


@dataclass
class Train(RunConfig, NormOptions):
    """Train an image classifier, with any net and any norm at any place.

    The same command resumes an interrupted run.
    """

    task: ClassVar[str] = "classification"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "norm", "where")

    net: str = "resnet20"
    """mlp-128-64 (widths), vgg-a, vgg-16conv, s-plain-20, cnn-4, resnet20, bottleneck-29, wrn-28-10, timm:NAME, or a
    model of torchvision."""
    width: int | None = None
    """Channels of s-plain (48), cnn (16), and of the first layers of vgg (64) and resnet (16)."""
    activation: str = "relu"
    """relu, elu, tanh, or trelu (translated ReLU, with a learned threshold)."""
    init: Literal["he", "lecun"] = "he"
    """Initialization: he, as in the nets' published code, or lecun, as in DBN's paper."""
    norm_last: bool = False
    """In VGG nets, place the norm after the activation."""
    dropout: float = 0.0
    """Dropout in the blocks of wide residual nets."""
    weights: str | None = None
    """Initial weights: imagenet (for timm:tf_efficientnet_lite0, included with the package), or a file of the net with
    BatchNorm, whose parameters and statistics the norm takes over. A classifier for other classes is new."""
    calibrate: int = 200
    """With weights and a norm without population statistics (gw, gn, ln, in, iw): set γ and β so that its outputs have
    BatchNorm's mean and deviation over this many training images; 0 keeps BatchNorm's γ and β."""

    dataset: str = "cifar10"
    """mnist, fashion-mnist, cifar10, cifar100, yaleb, pie, digits, or imagefolder:PATH with train/ and val/."""
    augment: bool = False
    """Random flips, and random crops of images padded by 4 pixels; for an image folder, random resized crops."""
    normalize: Literal["channel", "pixel", "pixel-mean", "half", "none"] = "channel"
    """By the training images' mean and deviation per channel (channel) or per pixel (pixel), or only their mean per
    pixel (pixel-mean); to [-1, 1], as EfficientNet-Lite0's weights need (half); or to [0, 1] (none). An image folder is
    normalized by ImageNet's statistics unless this is half."""
    image_size: int = 224
    """Size of the crops of an image folder."""
    resize: int | None = None
    """For data sets in memory: resize images to this many pixels per side, for nets that need large images. The cost
    grows with its square: images of 96 pixels cost nine times as much as those of 32."""
    train_images: int | None = None
    """Train on this many images, drawn by the seed; by default on all."""
    validation_images: int = 0
    """Hold out this many training images, drawn by the seed, and test on them too; the papers use 5,000."""
    test_images: int | None = None
    """Test on the first this many images; by default on all."""
    channels_last: bool = False
    """Use torch.channels_last for images and weights: faster on GPUs with tensor cores, and with BatchNorm on most
    CPUs; results differ only by rounding."""
    label_smoothing: float = 0.0
    """Fraction of the target that is spread over all classes."""
    mixup: float = 0.0
    """α of mixup's Beta distribution; 0 disables mixup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "image_size", "train_images", "test_images", "resize")
        self.check_at_least(0, "calibrate")
        if self.resize is not None and self.dataset.startswith(FOLDER):
            raise ValueError(f"expected --image-size for an image folder (got --resize {self.resize})")
        self.check_zero_or_several("validation_images", "batch_size")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"expected label_smoothing from 0 to below 1 (got {self.label_smoothing})")
        if self.mixup < 0:
            raise ValueError(f"expected mixup to be 0 or more (got {self.mixup})")

    def norm_options(self) -> dict[str, Any]:
        """Return the norm's options; with weights, BW_Σ uses ZCA, which keeps the output of a trained BatchNorm."""
        options = super().norm_options()
        if self.weights is not None and self.norm == "bw-sigma" and self.solver is None:
            del options["solver"]
        return options

    def for_dataset(self, dataset: str) -> Train:
        """Return a copy that tests on another data set; both or neither must be image folders."""
        if dataset.startswith(FOLDER) != self.dataset.startswith(FOLDER):
            raise ValueError(
                f"expected an image folder for a run on image folders, and a named data set for others (got {dataset} "
                f"for a run on {self.dataset})"
            )
        return replace(self, dataset=dataset, train_images=None, validation_images=0)
