"""Configurations of the Decorrelated Batch Normalization paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.training.config import Schedule


@dataclass
class DbnVgg(Train):
    """VGG-A on CIFAR-10 with DBN at every norm (DBN, fig. 5a).

    Expected: test error 0.61 points below BN's (--norm bn --affine). Adam (--optimizer adam --lr 0.01), ELU
    (--activation elu) and the norm after ReLU (--norm-last): 1.34, 1.44 and 0.38 points. The paper chose lr from
    {1, 2, 4, 8} and the interval from {1000, 2000, 4000, 8000} steps on 5,000 held-out images (--validation-images
    5000), and states neither the choice nor the epochs. The SGD of Lua Torch scales the gradient by 1 - momentum by
    default: its lr of 1 is 0.1 here. The paper recommends learned parameters in the ReLU (--activation trelu), but does
    not say whether these nets have them.
    Cost: 7.3 PFLOPs.
    Command: whitenorm-lab train dbn-vgg
    """

    net: str = "vgg-a"
    init: Literal["he", "lecun"] = "lecun"
    norm: str = "dbn"
    affine: bool = False
    normalize: Literal["channel", "pixel", "pixel-mean", "none"] = "pixel"
    batch_size: int = 256
    weight_decay: float = 5e-4
    schedule: Schedule = "every"
    factor: float = 0.5
    every: int = 2000


@dataclass
class DbnDeep(Train):
    """S-plain of 20, 32 and 44 layers, width 48, on CIFAR-10 with DBN (DBN, fig. 6a).

    Expected: with depth, training accuracy falls less than with BN (--norm bn --affine); the paper shows curves. It
    states neither the augmentation nor DBN's group size.
    Cost: 8.1 PFLOPs.
    Command: whitenorm-lab train dbn-deep --net s-plain-44
    """

    net: str = "s-plain-20"
    init: Literal["he", "lecun"] = "lecun"
    norm: str = "dbn"
    affine: bool = False
    augment: bool = True
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = (80, 120)
    factor: float = 0.2


@dataclass
class DbnRate(DbnDeep):
    """S-plain of width 42 at learning rate 0.4 on CIFAR-10 with DBN (DBN, fig. 6b).

    Expected: training accuracy well above BN's (--norm bn --affine); the paper shows curves. It states neither depth
    and epochs nor a group size that divides 42; 14 is used here.
    Cost: 7.8 PFLOPs.
    Command: whitenorm-lab train dbn-rate
    """

    width: int | None = 42
    lr: float = 0.4
    epochs: int = 200
    milestones: tuple[int, ...] = (60, 100, 140, 180)


@dataclass
class DbnResnet(Train):
    """CIFAR ResNet with DBN-scale, which has γ but no β, as its first norm (DBN, tab. 1).

    Expected: test error 7.77 % (BN, --norm bn --bias, 7.94 %) at 20 layers, 6.94 (7.31) at 32, 6.83 (7.17) at 44, 6.49
    (7.21) at 56, mean of 5 seeds. DBN-L1 (--no-affine): 7.94, 7.28, 6.87, 6.63. The schedule is that of the code
    the paper cites.
    Cost: 2.0 PFLOPs.
    Command: whitenorm-lab train dbn-resnet --net resnet56
    """

    norm: str = "dbn"
    where: str = "l1"
    bias: bool = False
    augment: bool = True
    nesterov: bool = True
    weight_decay: float = 1e-4
    epochs: int = 164
    milestones: tuple[int, ...] = (81, 122)


@dataclass
class DbnWrn(Train):
    """Wide residual net on CIFAR with DBN-scale, γ but no β, as its first norm (DBN, tab. 2).

    Expected: test error on CIFAR-10 3.79 % (BN, --norm bn --bias, 3.99 %), with wrn-40-10 3.74 (3.80); on CIFAR-100
    (--dataset cifar100) 18.36 (18.75) and 18.27 (18.7), mean of 5 seeds. Schedule and dropout are
    those of the code the paper cites, from which the table also quotes results with dropout (3.89, 3.80, 18.85, 18.3).
    Cost: 315 PFLOPs.
    Command: whitenorm-lab train dbn-wrn --net wrn-40-10
    """

    net: str = "wrn-28-10"
    dropout: float = 0.3
    norm: str = "dbn"
    where: str = "l1"
    bias: bool = False
    augment: bool = True
    nesterov: bool = True
    weight_decay: float = 5e-4
    epochs: int = 200
    milestones: tuple[int, ...] = (60, 120, 160)
    factor: float = 0.2


@dataclass
class DbnImagenet(Train):
    """ImageNet ResNet with DBN-scale, γ but no β, as its first norm (DBN, tab. 3).

    Expected: top-1 error 29.87 % (BN, --norm bn --bias, 30.21 %) for resnet18, 26.46 (26.53) for resnet34, 24.29
    (24.87) for resnet50 and 22.17 (22.54) for resnet101, single crop.
    Cost: 1255 PFLOPs.
    Command: torchrun --nproc-per-node 4 -m whitenorm_lab train dbn-imagenet --net resnet50 --dataset imagefolder:PATH
    """

    net: str = "resnet18"
    norm: str = "dbn"
    where: str = "l1"
    bias: bool = False
    dataset: str = "imagefolder:imagenet"
    augment: bool = True
    batch_size: int = 256
    weight_decay: float = 1e-4
    epochs: int = 90
    milestones: tuple[int, ...] = (30, 60)
    workers: int = 8


PRESETS: dict[str, type[Train]] = {
    "dbn-vgg": DbnVgg,
    "dbn-deep": DbnDeep,
    "dbn-rate": DbnRate,
    "dbn-resnet": DbnResnet,
    "dbn-wrn": DbnWrn,
    "dbn-imagenet": DbnImagenet,
}
