"""Configuration and preset of style transfer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Style(RunConfig, NormOptions):
    """Train a style transfer net with any norm; whitenorm-lab stylize applies it to an image.

    The same command resumes an interrupted run.
    """

    task: ClassVar[str] = "style"
    name_fields: ClassVar[tuple[str, ...]] = ("style", "norm", "where")

    style: Path | None = None
    """The style image; required."""
    width: int = 32
    """Channels of the net's first layer."""
    blocks: int = 5
    """Number of residual blocks."""

    dataset: str = "coco"
    """Content images: coco (ROOT/coco/train2017), coco128 (ROOT/coco128/images), or folder:PATH."""
    test: str | None = None
    """Test images, named like the content images; by default the last test_images of these, held out of training."""
    test_images: int = 16
    """Number of test images."""
    image_size: int = 256
    """Resize the shorter side of images to this many pixels; tests use squares of this size."""
    crop: int = 256
    """Size of the random square crops, randomly flipped, that training uses."""
    style_size: int = 384
    """Resize the shorter side of the style image to this many pixels; smaller gives finer strokes."""

    vgg: Path | None = None
    """File of torchvision's VGG-16 weights for the losses' features; by default EfficientNet-Lite0's features."""
    content_weight: float = 1.0
    """Weight of the content loss, which is relative to the variance of the style image's features."""
    style_weight: float = 6.0
    """Weight of the style loss, which compares Gram matrices, relative to the style image's."""
    smooth_weight: float = 5.0
    """Weight of the total variation: the mean squared difference of neighboring pixels."""

    epochs: int = 2
    batch_size: int = 4
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 1e-3
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "width", "test_images")
        self.check_at_least(0, "blocks", "content_weight", "style_weight", "smooth_weight")
        self.check_at_least(32, "crop", "style_size")
        if self.image_size < self.crop:
            raise ValueError(f"expected image_size of at least the crop's {self.crop} (got {self.image_size})")

    def for_dataset(self, dataset: str) -> Style:
        """Return a copy that tests on other images."""
        return replace(self, test=dataset)


@dataclass
class SwStyle(Style):
    """Style transfer with SW at every norm, by the perceptual-loss recipe (SW, fig. 1).

    Expected: images as good as those of IW (--norm iw --solver zca), and better than those of BN (--norm bn --solver
    None). The supplement shows images, but gives neither numbers nor a setup. The net, 256² crops, batch 4, Adam at
    1e-3, 40,000 steps (two passes over the 80,000 images of COCO at that time) and features of VGG-16 are from Johnson
    et al., 2016.
    Cost: 23.3 PFLOPs.
    Command: whitenorm-lab train sw-style --style FILE --vgg FILE
    """

    norm: str = "sw"
    solver: str | None = "zca"
    steps: int | None = 40_000
    workers: int = 4
