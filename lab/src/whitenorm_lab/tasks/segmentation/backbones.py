"""Dilated backbones by name, with the features of their last two stages."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from whitenorm.cli import suggest
from whitenorm_lab.data import IMAGENET_MEAN, IMAGENET_STD
from whitenorm_lab.nets import pretrained

STRIDES = (8, 16, 32)
_TIMM = "timm:"
# Widths of a ResNet's stages, as multiples of the first one's.
_WIDTHS = (1, 2, 4, 8)


class Backbone(NamedTuple):
    """A module that returns the features of its last two stages, and their numbers of channels."""

    module: nn.Module
    channels: tuple[int, int]


def build_backbone(name: str, stride: int = 8, width: int | None = None) -> Backbone:
    """Build a net without its classifier; dilation replaces strides beyond the output stride.

    Args:
        name: ``"resnet50"`` or another bottleneck ResNet of torchvision, or ``"timm:NAME"`` for a model of timm.
        stride: output stride: 8, 16 or 32.
        width: channels of the first stage of timm's ResNets, inside the blocks; 64 by default.

    Example::

        >>> backbone = build_backbone("resnet50", 8)
        >>> [tuple(maps.shape) for maps in backbone.module(torch.randn(2, 3, 64, 64))], backbone.channels
        ([(2, 1024, 8, 8), (2, 2048, 8, 8)], (1024, 2048))
    """
    if stride not in STRIDES:
        raise ValueError(f"expected stride to be one of {', '.join(map(str, STRIDES))} (got {stride})")
    if name.startswith(_TIMM):
        return _build_timm(name.removeprefix(_TIMM), stride, width)
    if width is not None:
        raise ValueError(f"expected width only with timm's ResNets (got {name}); use {_TIMM}{name}, or leave width out")
    return _build_resnet(name, stride)


class _Stages(nn.ModuleDict):
    """The stages of a ResNet by their original names; returns the features of the last two."""

    def forward(self, images: Tensor) -> list[Tensor]:
        previous = last = images
        for stage in self.values():
            previous, last = last, stage(last)
        return [previous, last]


def _build_resnet(name: str, stride: int) -> Backbone:
    from torchvision.models import get_model, list_models

    known = list_models(include=["resnet*", "resnext*", "wide_resnet*"])
    if name not in known:
        raise ValueError(
            f"expected a ResNet of torchvision, {', '.join(known)}, or {_TIMM}NAME (got {name!r}){suggest(name, known)}"
        )
    try:
        net = get_model(name, weights=None, replace_stride_with_dilation=[False, stride < 16, stride < 32])
    except NotImplementedError as error:
        raise ValueError(
            f"expected a ResNet with bottleneck blocks for stride {stride} (got {name}: {error}); use {_TIMM}{name}"
        ) from error
    stages = {stage: module for stage, module in net.named_children() if stage not in ("avgpool", "fc")}
    channels = net.fc.in_features
    return Backbone(_Stages(stages), (channels // 2, channels))


def _build_timm(name: str, stride: int, width: int | None) -> Backbone:
    timm = pretrained.import_package("timm", f"{_TIMM}{name}")
    if not timm.is_model(name):
        raise ValueError(f"expected a model of timm (got {name!r}){suggest(name, timm.list_models())}")
    options: dict[str, Any] = {} if width is None else {"channels": tuple(width * part for part in _WIDTHS)}
    try:
        net = timm.create_model(name, features_only=True, out_indices=(-2, -1), output_stride=stride, **options)
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        arguments = f"stride {stride}" + (f" and width {width}" if width else "")
        raise ValueError(
            f"expected a convolutional model of timm that takes {arguments} (got {name}: {error})"
        ) from error
    previous, last = net.feature_info.channels()
    return Backbone(net, (previous, last))


def load_normalization(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation that a backbone's trained weights expect images in [0, 1] to be normalized by.

    Example::

        >>> load_normalization("timm:tf_efficientnet_lite0")
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    config = None
    if name.startswith(_TIMM):
        timm = pretrained.import_package("timm", name)
        config = timm.get_pretrained_cfg(name.removeprefix(_TIMM))
    return (IMAGENET_MEAN, IMAGENET_STD) if config is None else (config.mean, config.std)
