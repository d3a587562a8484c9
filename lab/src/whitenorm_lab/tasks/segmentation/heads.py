"""From feature maps to a class a pixel: pyramid pooling and the fully convolutional head."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# Of the papers and their code: the pyramid's sizes, and the part of the features that is dropped.
BINS = (1, 2, 3, 6)
_DROPOUT = 0.1


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps ``(N, C, h, w)`` at another size, bilinear."""
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)


class PSPHead(nn.Module):
    """The pyramid pooling module of `PSPNet <https://arxiv.org/abs/1612.01105>`_ (Zhao et al., 2017), and a classifier.

    The features are averaged over grids of 1×1, 2×2, 3×3 and 6×6 fields, each taken to a quarter of the channels,
    resized back and set beside the features; a 3×3 convolution and a classifier follow.

    Shape: ``(N, C, h, w)`` to ``(N, classes, h, w)``.

    Example::

        >>> PSPHead(64, 5)(torch.randn(2, 64, 12, 15)).shape
        torch.Size([2, 5, 12, 15])
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        inner = max(1, channels // 4)
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(size), *_layer(channels, inner, 1)) for size in BINS
        )
        self.classifier = nn.Sequential(
            *_layer(channels + len(BINS) * inner, inner, 3), nn.Dropout2d(_DROPOUT), nn.Conv2d(inner, classes, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        size = (features.shape[-2], features.shape[-1])
        pooled = [resize(pool(features), size) for pool in self.pools]
        return self.classifier(torch.cat([features, *pooled], 1))


def fcn_head(channels: int, classes: int) -> nn.Sequential:
    """A 3×3 convolution to a quarter of the channels and a classifier, as of `FCN <https://arxiv.org/abs/1411.4038>`_.

    Shape: ``(N, C, h, w)`` to ``(N, classes, h, w)``.
    """
    inner = max(1, channels // 4)
    return nn.Sequential(*_layer(channels, inner, 3), nn.Dropout2d(_DROPOUT), nn.Conv2d(inner, classes, 1))


def _layer(channels: int, out: int, kernel: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"psp": PSPHead, "fcn": fcn_head}
