"""VGG-A for 32² images with DBN of any group size after every convolution: DBN's table B.1."""

from __future__ import annotations

from functools import partial

from torch import nn

import whitenorm
from benchmarks.resnet import Norm

# Channels of the convolutions; 0 halves the resolution.
_PLAN = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
MODELS: dict[str, Norm] = {
    f"DBN-G{size}": partial(whitenorm.DecorrelatedBatchNorm, group_size=size) for size in (8, 16, 64, 256, 512)
}


def vgg_a(norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Eight convolutions, each with a norm, and a linear classifier of ten classes."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in _PLAN:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), norm(width), nn.ReLU(inplace=True)]
            inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 10))
