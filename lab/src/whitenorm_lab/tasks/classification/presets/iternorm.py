"""Configurations of the Iterative Normalization paper."""

from __future__ import annotations

from dataclasses import dataclass

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets.dbn import DbnImagenet, DbnWrn


@dataclass
class IternormVgg(Train):
    """VGG with 16 convolutions on CIFAR-10 with IterNorm at every norm, as one group of channels (IterNorm, fig. 6, 7).

    Expected: test error 0.79 points below BN's (--norm bn --group-size None) and 0.22 below DBN's (--norm dbn
    --group-size 16); batch 1024 at lr 0.4: 0.53 and 0.37; batch 16 at lr 0.0125: 1.11 and 1.05; lr 1: 0.75 and 0.58,
    mean of 3 seeds. T (--newton-steps) 0 and 7 are worst; the group size makes little difference. The paper states
    neither momentum nor weight decay.
    Cost: 19.1 PFLOPs.
    Command: whitenorm-lab train iternorm-vgg
    """

    net: str = "vgg-16conv"
    norm: str = "iternorm"
    group_size: int | None = 512
    augment: bool = True
    batch_size: int = 256
    epochs: int = 160
    milestones: tuple[int, ...] = (60, 120)
    factor: float = 0.2


@dataclass
class IternormWrn(DbnWrn):
    """Wide residual net on CIFAR-10 with IterNorm at every norm, groups of 64 (IterNorm, tab. 1).

    Expected: test error 3.56 % (BN 3.89 %), with wrn-40-10 3.59 (3.82), mean of 5 seeds, with DBN's dropout.
    Cost: 315 PFLOPs.
    Command: whitenorm-lab train iternorm-wrn --net wrn-40-10
    """

    norm: str = "iternorm"
    where: str = "all"
    bias: bool = True


@dataclass
class IternormImagenet(DbnImagenet):
    """ImageNet ResNet with IterNorm as its first norm and before its classifier (IterNorm, tab. 2 and 3).

    Expected: top-1 error of resnet18 28.86 % (BN 29.76 %; --where l1 29.34, --where all 29.30), resnet50 22.91 (23.95),
    resnet101 21.77 (22.45), single crop.
    Cost: 1394 PFLOPs.
    Command: torchrun --nproc-per-node 4 -m whitenorm_lab train iternorm-imagenet --net resnet50 --dataset
    imagefolder:PATH
    """

    norm: str = "iternorm"
    where: str = "l1+df"
    bias: bool = True
    epochs: int = 100
    milestones: tuple[int, ...] = (30, 60, 90)


PRESETS: dict[str, type[Train]] = {
    "iternorm-vgg": IternormVgg,
    "iternorm-wrn": IternormWrn,
    "iternorm-imagenet": IternormImagenet,
}
