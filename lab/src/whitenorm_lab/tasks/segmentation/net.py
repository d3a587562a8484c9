"""Segmentation nets: a dilated backbone, a head, and an auxiliary head on earlier features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.models import LayerLike, Where
from whitenorm_lab.nets import place_, pretrained
from whitenorm_lab.tasks.segmentation.backbones import build_backbone

# PSPNet's pyramid sizes, and the dropout of its published code.
_BINS = (1, 2, 3, 6)
_DROPOUT = 0.1


def _resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps ``(N, C, h, w)`` bilinearly."""
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)


class PSPHead(nn.Module):
    """Pyramid pooling module and classifier of `PSPNet <https://arxiv.org/abs/1612.01105>`_ (Zhao et al., 2017).

    The features are average-pooled to 1×1, 2×2, 3×3 and 6×6, reduced to a quarter of the channels, resized back and
    concatenated with the features; a 3×3 convolution and a classifier follow.

    Shape: ``(N, C, h, w)`` to ``(N, classes, h, w)``.

    Example::

        >>> PSPHead(64, 5)(torch.randn(2, 64, 12, 15)).shape
        torch.Size([2, 5, 12, 15])
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        inner = max(1, channels // 4)
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(size), *_build_layer(channels, inner, 1)) for size in _BINS
        )
        self.classifier = nn.Sequential(
            *_build_layer(channels + len(_BINS) * inner, inner, 3), nn.Dropout2d(_DROPOUT), nn.Conv2d(inner, classes, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        size = (features.shape[-2], features.shape[-1])
        pooled = [_resize(pool(features), size) for pool in self.pools]
        return self.classifier(torch.cat([features, *pooled], 1))


def build_fcn_head(channels: int, classes: int) -> nn.Sequential:
    """Build the head of `FCN <https://arxiv.org/abs/1411.4038>`_: a 3×3 convolution to C / 4 channels, a classifier.

    Shape: ``(N, C, h, w)`` to ``(N, classes, h, w)``.
    """
    inner = max(1, channels // 4)
    return nn.Sequential(*_build_layer(channels, inner, 3), nn.Dropout2d(_DROPOUT), nn.Conv2d(inner, classes, 1))


def _build_layer(channels: int, out: int, kernel: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"psp": PSPHead, "fcn": build_fcn_head}


class Segmenter(nn.Module):
    """Backbone and heads; returns class scores for every pixel.

    In training mode with an auxiliary head, it returns the scores of both heads, otherwise those of the main head.

    Shape: ``(N, 3, H, W)`` to ``(N, classes, H, W)``.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, auxiliary: nn.Module | None = None) -> None:
        super().__init__()
        # The backbone comes first, so that recipes count its norms first.
        self.backbone, self.head, self.auxiliary = backbone, head, auxiliary

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        size = (images.shape[-2], images.shape[-1])
        previous, last = self.backbone(images)
        scores = _resize(self.head(last), size)
        if self.auxiliary is None or not self.training:
            return scores
        return scores, _resize(self.auxiliary(previous), size)


def build_segmenter(
    name: str,
    classes: int,
    head: str = "psp",
    norm: LayerLike = "bn",
    where: Where = "all",
    *,
    stride: int = 8,
    width: int | None = None,
    auxiliary: bool = True,
    weights: str | None = None,
    norm_options: dict[str, Any] | None = None,
) -> Segmenter:
    """Build a segmentation net with a norm at the places of a recipe, and BatchNorm elsewhere.

    SW's recipes, ``"sw-7"`` and ``"sw-14"``, cover only the backbone's norms; ``"all"`` includes those of the heads.

    Args:
        name: the backbone: a bottleneck ResNet of torchvision, or ``"timm:NAME"`` for a model of timm.
        classes: number of classes.
        head: ``"psp"`` or ``"fcn"``.
        norm: a name (see :func:`whitenorm_lab.nets.place_`) or a function from width to norm.
        where: a recipe's name (see :mod:`whitenorm.recipes`) or a filter.
        stride: output stride of the backbone: 8, 16 or 32.
        width: channels of the first stage of timm's ResNets; 64 by default.
        auxiliary: add an auxiliary head on the second-to-last stage.
        weights: a file of the backbone's weights, or ``"imagenet"``. Weights of a net with BatchNorm carry over to the
            norms that replace it; weights of a net with the same norms at the same places are loaded unchanged.
        norm_options: the norm's options, such as ``{"group_size": 16}``.

    Example::

        >>> net = build_segmenter("resnet50", 11, "psp", "sw", "sw-14")
        >>> sum(type(module).__name__ == "SwitchableWhitening" for module in net.modules())
        14
        >>> net.eval()(torch.randn(1, 3, 33, 65)).shape
        torch.Size([1, 11, 33, 65])
    """
    if head not in HEADS:
        raise ValueError(f"expected head to be one of {', '.join(HEADS)} (got {head!r})")
    backbone, (previous, last) = build_backbone(name, stride, width)
    model = Segmenter(backbone, HEADS[head](last, classes), build_fcn_head(previous, classes) if auxiliary else None)
    has_same_norms = weights is not None and _has_other_norms(weights, model.backbone)
    if weights is not None and not has_same_norms:
        pretrained.load_weights_(model.backbone, name, weights)
    if norm != "bn" or where != "all" or norm_options:
        place_(model, norm, where, **(norm_options or {}))
    if weights is not None and has_same_norms:
        pretrained.load_weights_(model.backbone, name, weights)
    return model


def _has_other_norms(weights: str, backbone: nn.Module) -> bool:
    """Return whether a file lacks the running variance of one of a backbone's BatchNorms."""
    variances = {name for name in backbone.state_dict() if name.endswith("running_var")}
    return weights != pretrained.IMAGENET and not variances <= set(pretrained.read_weights(Path(weights)))
