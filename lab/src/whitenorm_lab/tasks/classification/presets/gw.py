"""Configurations of the Group Whitening paper."""

from __future__ import annotations

from dataclasses import dataclass

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets.iternorm import IternormImagenet
from whitenorm_lab.training.config import Schedule


@dataclass
class GwImagenet(IternormImagenet):
    """ImageNet ResNet-50 with GW as its first norm and the second of every block (GW, tab. 2 and 3).

    Expected: top-1 accuracy 77.72 % (BN 76.23 %, GN 75.71 %, BW_Σ 76.76 %, and 77.21 % with --where s1-b2+df); --where
    s1 76.76, s1-b1 77.62, s1-b3 77.47, s1-b12 77.45.
    Cost: 3143 PFLOPs.
    Command: torchrun --nproc-per-node 2 -m whitenorm_lab train gw-imagenet --dataset imagefolder:PATH
    """

    net: str = "resnet50"
    norm: str = "gw"
    where: str = "s1-b2"


@dataclass
class GwAdvanced(GwImagenet):
    """The preset gw-imagenet with cosine schedule, label smoothing and mixup (GW, tab. A4).

    Expected: top-1 accuracy 78.46 % (BN 77.16 %, GN 76.09 %), for resnext50_32x4d 80.07 (78.84, 76.90).
    Cost: 3143 PFLOPs.
    Command: torchrun --nproc-per-node 2 -m whitenorm_lab train gw-advanced --dataset imagefolder:PATH
    """

    schedule: Schedule = "cosine"
    label_smoothing: float = 0.1
    mixup: float = 0.2


@dataclass
class GwMlp(Train):
    """MLP of four layers and 256 units on MNIST with GW (GW, fig. 1 and A2).

    Expected: the same training and test error at all batch sizes (--batch-size), whereas BN's (--norm bn) rise at small
    ones; the paper shows them after 50 epochs.
    Cost: 0.0072 PFLOPs.
    Command: whitenorm-lab train gw-mlp --batch-size 16
    """

    net: str = "mlp-256-256-256-256"
    norm: str = "gw"
    dataset: str = "mnist"
    momentum: float = 0.0
    epochs: int = 50


PRESETS: dict[str, type[Train]] = {"gw-imagenet": GwImagenet, "gw-advanced": GwAdvanced, "gw-mlp": GwMlp}
