"""What a run of style transfer is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Style(RunConfig, NormOptions):
    """Train a net that paints any image in the style of one, with any norm: whitenorm stylize then applies it.

    A run that was stopped goes on where it was when the same command is given again.
    """

    task: ClassVar[str] = "style"
    name_fields: ClassVar[tuple[str, ...]] = ("style", "norm", "where")

    style: Path | None = None
    """The image whose style is learnt. It must be given."""
    width: int = 32
    """Channels of the net's first layer."""
    blocks: int = 5
    """Its residual blocks."""

    dataset: str = "coco"
    """Content images: coco (ROOT/coco/train2017), coco128 (ROOT/coco128/images), or folder:PATH with images in it."""
    test: str | None = None
    """The same for tests; if not given, the last test_images of the content images, which are not trained on."""
    test_images: int = 16
    """Test on so many."""
    image_size: int = 256
    """Images are scaled so that their shorter side has so many pixels; tests are on squares of that side."""
    crop: int = 256
    """The side of the squares that are cut out, at random and flipped or not, to train on."""
    style_size: int = 384
    """The shorter side of the style image: the smaller, the finer the strokes."""

    vgg: Path | None = None
    """Weights of torchvision's VGG-16, whose features the losses compare; if not given, EfficientNet-Lite0's."""
    content_weight: float = 1.0
    """Of the difference in content, relative to the variance of the style image's features."""
    style_weight: float = 6.0
    """Of the difference in style: of Gram matrices, relative to the style image's."""
    smooth_weight: float = 5.0
    """Of the total variation: the mean squared difference of neighbouring pixels."""

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
        """The same, tested on other images."""
        return replace(self, test=dataset)


@dataclass
class SwStyle(Style):
    """Style transfer with SW at every norm, by the perceptual-loss recipe (SW, fig. 1).

    Expected: pictures as good as those of IW (--norm iw --solver zca), and better than those of BN (--norm bn --solver
    None). The supplement has pictures, and neither numbers nor a set-up: the net, 256² crops, batch 4, Adam at 1e-3 and
    40,000 steps, two passes over the 80,000 images that COCO then had, are those of Johnson et al., 2016, who compare
    features of VGG-16.
    Cost: 23.3 PFLOPs.
    Command: whitenorm-lab train sw-style --style FILE --vgg FILE
    """

    norm: str = "sw"
    solver: str | None = "zca"
    steps: int | None = 40_000
    workers: int = 4
