"""What a run of classification is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig

FOLDER = "imagefolder:"


@dataclass
class Train(RunConfig, NormOptions):
    """Train an image classifier: any net, any norm at any place, any of the data sets.

    A run that was stopped goes on where it was when the same command is given again.
    """

    task: ClassVar[str] = "classification"
    name_fields: ClassVar[tuple[str, ...]] = ("net", "norm", "where")

    net: str = "resnet20"
    """mlp-128-64 (widths), vgg-a, vgg-16conv, s-plain-20, cnn-4, resnet20, bottleneck-29, wrn-28-10, timm:NAME, or
    torchvision's."""
    width: int | None = None
    """Channels of s-plain (48), cnn (16), and of the first layers of vgg (64) and resnet (16)."""
    activation: str = "relu"
    """relu, elu, tanh or trelu (translated, with a threshold that is learnt)."""
    init: Literal["he", "lecun"] = "he"
    """The weights at the start: as in the nets' own codes, mostly He's, or LeCun's, as DBN's text has it."""
    norm_last: bool = False
    """In VGG nets, the norm after the activation."""
    dropout: float = 0.0
    """In the blocks of wide residual nets."""
    weights: str | None = None
    """To begin with: imagenet (of timm:tf_efficientnet_lite0, which install by pip), or a file of the net with
    BatchNorm, which the norm takes the place of. A classifier of other classes is new."""
    calibrate: int = 200
    """With weights, for norms that keep no population (gw, gn, ln, in, iw): γ and β are set so that their outputs have
    BatchNorm's mean and deviation over so many training images; 0: as they were."""

    dataset: str = "cifar10"
    """mnist, fashion-mnist, cifar10, cifar100, yaleb, pie, digits, or imagefolder:PATH with train/ and val/ inside."""
    augment: bool = False
    """Random crops of images padded by 4 pixels, and flips; of an image folder, random resized crops and flips."""
    normalize: Literal["channel", "pixel", "pixel-mean", "half", "none"] = "channel"
    """By mean and deviation of the training images: a channel's, a pixel's, a pixel's mean alone; to [-1, 1], as
    EfficientNet-Lite0's weights want it; or only to [0, 1]. Image folders have ImageNet's, or half."""
    image_size: int = 224
    """Of an image folder's crops."""
    resize: int | None = None
    """Sets in memory: images scaled to so many pixels a side, for nets that need large ones. The cost grows with its
    square, of images that have no more to show: 96 for 32 is nine times."""
    train_images: int | None = None
    """Train on so many images, drawn by the seed; all if not given."""
    validation_images: int = 0
    """Hold so many of the training images out, drawn by the seed, and test on them too; the papers' 5,000."""
    test_images: int | None = None
    """Test on the first so many; all if not given."""
    channels_last: bool = False
    """Images and weights with the channels of a pixel side by side in memory: faster on GPUs with tensor cores, and
    with BatchNorm on most CPUs; the same but for rounding."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    mixup: float = 0.0
    """α of the Beta distribution that images are mixed with; 0 is no mixing."""

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
        """The norm's options that are given; with weights, BW_Σ by ZCA, by which a trained BatchNorm's output stays."""
        options = super().norm_options()
        if self.weights is not None and self.norm == "bw-sigma" and self.solver is None:
            del options["solver"]
        return options

    def for_dataset(self, dataset: str) -> Train:
        """The same for another set; both, or neither, are image folders."""
        if dataset.startswith(FOLDER) != self.dataset.startswith(FOLDER):
            raise ValueError(
                f"expected an image folder for a run on image folders, and a named set for others (got {dataset} for "
                f"one on {self.dataset})"
            )
        return replace(self, dataset=dataset, train_images=None, validation_images=0)
