"""What a training run is: one dataclass, every field an option of ``whitenorm train``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass
class Train:
    """Train an image classifier: any net, any norm at any place, any of the data sets.

    A run that was stopped goes on where it was when the same command is given again.
    """

    net: str = "resnet20"
    """mlp-128-64 (widths), vgg-a, vgg-16conv, s-plain-20, cnn-4, resnet20, wrn-28-10, timm:NAME, torchvision's."""
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

    norm: str = "bn"
    """bn, gn, ln, in, none, iternorm, dbn, bw-sigma, sw, sw5, gw or iw."""
    where: str = "all"
    """The recipe that places the norm, such as all, l1, l1+df, s1-b2, sw-cifar; BatchNorm stays elsewhere."""
    group_size: int | None = None
    """Channels whitened together; the method's own if not given."""
    num_groups: int | None = None
    """Groups of gn and gw; the method's own if not given."""
    newton_steps: int | None = None
    """IterNorm's T; 5 if not given."""
    solver: str | None = None
    """newton, zca, pca or cholesky; the method's own if not given."""
    eps: float | None = None
    """The norm's ε; its own if not given."""
    affine: bool = True
    """Whether the placed norm has γ and β."""
    bias: bool = True
    """Whether it has β beside γ."""

    dataset: str = "cifar10"
    """mnist, fashion-mnist, cifar10, cifar100, yaleb, pie, digits, or imagefolder:PATH with train/ and val/ inside."""
    data: Path | None = None
    """The data root; $WHITENORM_DATA if not given."""
    augment: bool = False
    """Random crops of images padded by 4 pixels, and flips; of an image folder, random resized crops and flips."""
    normalize: Literal["channel", "pixel", "pixel-mean", "none"] = "channel"
    """By mean and deviation of the training images: a channel's, a pixel's, a pixel's mean alone; or only to [0, 1]."""
    image_size: int = 224
    """Of an image folder's crops."""
    train_images: int | None = None
    """Train on so many images, drawn by the seed; all if not given."""
    validation_images: int = 0
    """Hold so many of the training images out, drawn by the seed, and test on them too; the papers' 5,000."""
    test_images: int | None = None
    """Test on the first so many; all if not given."""
    workers: int = 2
    """Processes that read an image folder. Other sets are in memory and need none."""

    epochs: int = 160
    """Passes over the training images."""
    steps: int | None = None
    """Stop after so many steps, in whatever epoch."""
    batch_size: int = 128
    """Images a step, over all processes; 0 is all of them at once."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam."""
    lr: float = 0.1
    """Learning rate at the start, or after the warm-up."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Of SGD."""
    weight_decay: float = 0.0
    """On all parameters."""
    schedule: Literal["constant", "step", "every", "cosine"] = "step"
    """lr × factor at each milestone, or every so many steps, or down to 0 along a cosine."""
    milestones: tuple[int, ...] = ()
    """Epochs of the step schedule."""
    factor: float = 0.1
    """Of the step and every schedules."""
    every: int = 1000
    """Steps of the every schedule."""
    warmup: int = 0
    """Epochs of a linear rise to lr."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    mixup: float = 0.0
    """α of the Beta distribution that images are mixed with; 0 is no mixing."""

    seed: int = 0
    """Of weights, order, augmentation and everything drawn in training."""
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    """Of the arithmetic: AMP in bfloat16 or float16, or plain."""
    accelerator: str = "auto"
    """cpu, gpu, or what there is. Several processes are started by torchrun."""
    sync: bool = False
    """Batch statistics over all processes."""
    test_every: int = 1
    """Epochs between tests."""
    recalibrate: int | None = None
    """Before a test, population statistics from so many training images; 5,000 for batch whitening, else 0: none."""

    folder: Path | None = None
    """Of checkpoints, logs and results; runs/NAME on the command line, none in fit."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Also a checkpoint every so many steps."""
    progress: bool = True
    """Show progress bars on a terminal. There is a line an epoch with and without them."""
    quiet: bool = False
    """Say nothing at all."""

    def __post_init__(self) -> None:
        for name in ("epochs", "every", "test_every", "checkpoint_epochs", "image_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} to be at least 1 (got {getattr(self, name)})")
        for name in ("steps", "train_images", "test_images", "checkpoint_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"expected {name} to be at least 1, or nothing (got {getattr(self, name)})")
        for name in ("validation_images", "recalibrate"):
            if (getattr(self, name) or 0) < 0 or getattr(self, name) == 1:
                raise ValueError(f"expected {name} to be 2 or more, or 0 for none (got {getattr(self, name)})")
        if self.batch_size < 0 or self.batch_size == 1:
            raise ValueError(f"expected batch_size to be 2 or more, or 0 for all images (got {self.batch_size})")
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"expected milestones in rising order (got {self.milestones})")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"expected label_smoothing from 0 to below 1 (got {self.label_smoothing})")
        if self.mixup < 0:
            raise ValueError(f"expected mixup to be 0 or more (got {self.mixup})")

    def norm_options(self) -> dict[str, Any]:
        """The norm's options that are given."""
        options = {
            "group_size": self.group_size,
            "num_groups": self.num_groups,
            "steps": self.newton_steps,
            # GW's text has BW_Σ by Newton in all its experiments; convert_'s own is ZCA.
            "solver": self.solver or ("newton" if self.norm == "bw-sigma" else None),
            "eps": self.eps,
            "affine": None if self.affine else False,
            "bias": None if self.bias or not self.affine else False,
        }
        return {name: value for name, value in options.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        fields = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        return {**fields, "milestones": list(self.milestones)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Train:
        """What :meth:`to_dict` gave; fields that an older version had not are at their defaults.

        Example::

            >>> config = Train(net="mlp-8", folder=Path("run"))
            >>> Train.from_dict(config.to_dict()) == config
            True
        """
        values = dict(content)
        for name in ("data", "folder"):
            values[name] = None if values.get(name) is None else Path(values[name])
        values["milestones"] = tuple(values.get("milestones", ()))
        return Train(**values)


# What changes where and how a run is shown, but not its numbers.
ASIDE = ("data", "workers", "folder", "progress", "quiet", "checkpoint_epochs", "checkpoint_steps")
