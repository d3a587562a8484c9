"""Configurations of the Switchable Whitening paper, with ZCA; its supplement gives the places but no results."""

from __future__ import annotations

from dataclasses import dataclass

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets.dbn import DbnImagenet, DbnResnet


@dataclass
class SwResnet(DbnResnet):
    """CIFAR ResNet with SW at norms 1, 4, 8, 12, … (SW, app. B).

    Expected: the supplement gives no number; compare with BN (--norm bn --solver None) and the five statistics (--norm
    sw5). Schedule as for DBN's ResNets.
    Cost: 2.0 PFLOPs.
    Command: whitenorm-lab train sw-resnet --net resnet56
    """

    norm: str = "sw"
    where: str = "sw-cifar"
    bias: bool = True
    solver: str | None = "zca"


@dataclass
class SwImagenet(DbnImagenet):
    """ImageNet ResNet-50 with SW at norms 1, 6, 12, …, 36 (SW, app. B).

    Expected: the supplement gives no number. Schedule as for IterNorm's ResNets.
    Cost: 3143 PFLOPs.
    Command: torchrun --nproc-per-node 8 -m whitenorm_lab train sw-imagenet --dataset imagefolder:PATH
    """

    net: str = "resnet50"
    norm: str = "sw"
    where: str = "sw-7"
    bias: bool = True
    solver: str | None = "zca"
    epochs: int = 100
    milestones: tuple[int, ...] = (30, 60, 90)


PRESETS: dict[str, type[Train]] = {"sw-resnet": SwResnet, "sw-imagenet": SwImagenet}
