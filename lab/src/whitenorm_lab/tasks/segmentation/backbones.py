"""Backbones by name, dilated to a stride: the features of their last two stages."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from whitenorm._suggest import suggest
from whitenorm_lab.nets import pretrained

STRIDES = (8, 16, 32)
_TIMM = "timm:"
# The widths of a residual net's stages, in multiples of the first one's.
_STAGES = (1, 2, 4, 8)
# Of ImageNet's training images.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(NamedTuple):
    """A module from images to the features of its last two stages, and their channels."""

    module: nn.Module
    channels: tuple[int, int]


def backbone(name: str, stride: int = 8, width: int | None = None) -> Backbone:
    """A net without its classifier, whose features have a stride of so many pixels: what would halve them is dilated.

    Args:
        name: ``"resnet50"`` or another of torchvision's bottleneck ResNets, or ``"timm:NAME"`` with timm's.
        stride: 8, 16 or 32.
        width: channels of the first stage of timm's ResNets, inside the blocks; 64 if not given.

    Example::

        >>> made = backbone("resnet50", 8)
        >>> [tuple(maps.shape) for maps in made.module(torch.randn(2, 3, 64, 64))], made.channels
        ([(2, 1024, 8, 8), (2, 2048, 8, 8)], (1024, 2048))
    """
    if stride not in STRIDES:
        raise ValueError(f"expected stride to be one of {', '.join(map(str, STRIDES))} (got {stride})")
    if name.startswith(_TIMM):
        return _timm(name.removeprefix(_TIMM), stride, width)
    if width is not None:
        raise ValueError(f"expected width with timm's ResNets alone (got {name}); use {_TIMM}{name}, or leave it out")
    return _resnet(name, stride)


class _Stages(nn.ModuleDict):
    """The stages of a ResNet under its own names; gives the features of the last two."""

    def forward(self, images: Tensor) -> list[Tensor]:
        earlier = last = images
        for stage in self.values():
            earlier, last = last, stage(last)
        return [earlier, last]


def _resnet(name: str, stride: int) -> Backbone:
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
    parts = {part: module for part, module in net.named_children() if part not in ("avgpool", "fc")}
    last = net.fc.in_features
    return Backbone(_Stages(parts), (last // 2, last))


def _timm(name: str, stride: int, width: int | None) -> Backbone:
    timm = pretrained.import_package("timm", f"{_TIMM}{name}")
    if not timm.is_model(name):
        raise ValueError(f"expected a net of timm (got {name!r}){suggest(name, timm.list_models())}")
    options: dict[str, Any] = {} if width is None else {"channels": tuple(width * part for part in _STAGES)}
    try:
        net = timm.create_model(name, features_only=True, out_indices=(-2, -1), output_stride=stride, **options)
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        asked = f"stride {stride}" + (f" and width {width}" if width else "")
        raise ValueError(f"expected a convolutional net of timm that takes {asked} (got {name}: {error})") from error
    earlier, last = net.feature_info.channels()
    return Backbone(net, (earlier, last))


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of images in [0, 1] that a backbone's trained weights are for.

    Example::

        >>> normalisation("timm:tf_efficientnet_lite0")
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    config = None
    if name.startswith(_TIMM):
        timm = pretrained.import_package("timm", name)
        config = timm.get_pretrained_cfg(name.removeprefix(_TIMM))
    return (_MEAN, _DEVIATION) if config is None else (config.mean, config.std)
