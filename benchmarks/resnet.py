"""ResNet-50 with a choice of norm at every place, and the papers' placements by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import whitenorm

Norm = Callable[[int], nn.Module]
# From the number of a norm in the network (1 is the stem's), and its role, to the norm.
Placement = Callable[[int, str], bool]


def _sw(numbers: set[int]) -> Placement:
    return lambda number, role: number in numbers


PLACEMENTS: dict[str, Placement] = {
    "S1": lambda number, role: role == "stem",
    "S1-B1": lambda number, role: role in ("stem", "b1"),
    "S1-B2": lambda number, role: role in ("stem", "b2"),
    "S1-B3": lambda number, role: role in ("stem", "b3"),
    "S1-B12": lambda number, role: role in ("stem", "b1", "b2"),
    "7": _sw({1, *range(6, 37, 6)}),
    "14": _sw({1, *range(3, 40, 3)}),
    "full": lambda number, role: True,
}


def _gw(channels: int) -> nn.Module:
    return whitenorm.GroupWhitening(64, channels)


def _sw5(channels: int) -> nn.Module:
    return whitenorm.SwitchableWhitening(channels, statistics=("bw", "iw", "bn", "in", "ln"))


def _bw_cov(channels: int) -> nn.Module:
    return whitenorm.BatchWhitening(channels, 64, population="covariance")


MODELS: dict[str, tuple[Norm, str]] = {
    **{f"GW {place}": (_gw, place) for place in ("S1", "S1-B1", "S1-B2", "S1-B3", "S1-B12")},
    "BW_Σ S1-B2": (_bw_cov, "S1-B2"),
    "BW 7 layers": (whitenorm.DecorrelatedBatchNorm, "7"),
    "SW^a 7 layers": (whitenorm.SwitchableWhitening, "7"),
    "SW^b 7 layers": (_sw5, "7"),
    "BW 14 layers": (whitenorm.DecorrelatedBatchNorm, "14"),
    "SW^a 14 layers": (whitenorm.SwitchableWhitening, "14"),
    "SW^b 14 layers": (_sw5, "14"),
    "IterNorm L1": (whitenorm.IterNorm, "S1"),
    "IterNorm full": (whitenorm.IterNorm, "full"),
}


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, each with a norm, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[str, int], nn.Module]) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            norm("b1", width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            norm("b2", width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            norm("b3", outputs),
        )
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm("shortcut", outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet50(norm: Norm = nn.BatchNorm2d, place: Placement | None = None) -> nn.Sequential:
    """ResNet-50 with BatchNorm, but for the places that are asked for. Norms of shortcuts are not numbered."""
    number = 0

    def make(role: str, channels: int) -> nn.Module:
        nonlocal number
        if role == "shortcut":
            return nn.BatchNorm2d(channels) if place is not PLACEMENTS["full"] else norm(channels)
        number += 1
        return norm(channels) if place is not None and place(number, role) else nn.BatchNorm2d(channels)

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), make("stem", 64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1, make))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
