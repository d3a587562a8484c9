"""The papers' networks, with any norm at any place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from whitenorm.cli import suggest
from whitenorm.models import LayerLike, Where
from whitenorm_lab.nets import plain
from whitenorm_lab.nets.calibration import match_moments_, measure_batch_norms
from whitenorm_lab.nets.layers import Activation, TReLU, init_lecun_, relu
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.nets.norms import NAMES as NORMS
from whitenorm_lab.nets.norms import place_
from whitenorm_lab.nets.pretrained import import_package, load_weights_
from whitenorm_lab.nets.resnet import Bottleneck, ResNet
from whitenorm_lab.nets.wrn import WideResNet

__all__ = ["ACTIVATIONS", "NETS", "NORMS", "build", "place_"]

ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "elu": lambda num_channels: nn.ELU(),
    "tanh": lambda num_channels: nn.Tanh(),
    "trelu": TReLU,
}
"""Activations by name, as functions from the number of channels to a module."""
NETS = ("mlp-100-100", "vgg-a", "vgg-16conv", "s-plain-20", "cnn-4", "resnet20", "bottleneck-29", "wrn-28-10")
"""One name of each kind of network that :func:`build` accepts besides torchvision's and timm's; depths may differ."""
_TIMM = "timm:"


def build(
    name: str,
    num_classes: int,
    norm: LayerLike = "bn",
    where: Where = "all",
    *,
    shape: tuple[int, int, int] = (3, 32, 32),
    activation: str = "relu",
    width: int | None = None,
    dropout: float = 0.0,
    norm_last: bool = False,
    init: str = "he",
    norm_options: dict[str, Any] | None = None,
    weights: str | None = None,
    images: Tensor | None = None,
) -> nn.Module:
    """Build a network by name, with a norm at the places of a recipe and BatchNorm elsewhere.

    Args:
        name: ``"mlp-128-64"`` with its hidden widths (``"mlp"`` is a linear classifier); ``"vgg-a"``, ``"vgg-16conv"``,
            ``"s-plain-44"``, ``"cnn-4"``, ``"resnet20"``, ``"bottleneck-29"`` (a ResNet with bottleneck blocks) or
            ``"wrn-28-10"`` with their depths; a name of torchvision; or a name of timm, as in ``"timm:resnet26d"``.
        num_classes: number of classes.
        norm: a name (see :func:`place_`) or a function from the number of channels to a norm.
        where: name of a recipe (see :mod:`whitenorm.recipes`) or a filter.
        shape: image shape, ``(C, H, W)``.
        activation: ``"relu"``, ``"elu"``, ``"tanh"`` or ``"trelu"``, the translated ReLU of DBN's text.
        width: channels of S-plain (48 by default), the CNN (16), or the first layer of VGG (64) and the ResNets (16).
        dropout: dropout in the blocks of a wide ResNet.
        norm_last: place the norm after the activation, in VGG nets.
        init: ``"he"`` for the initialization of the nets' original code, ``"lecun"`` for that of DBN's text.
        norm_options: options of the norm, such as ``{"group_size": 16, "affine": False}``.
        weights: ``"imagenet"`` or a file with weights of the net with BatchNorm; the norm is placed after loading.
        images: images that calibrate norms without population statistics to the pretrained BatchNorms (see
            :mod:`whitenorm_lab.nets.calibration`).

    Example::

        >>> net = build("resnet20", 10, "dbn", "l1")
        >>> type(net.norm).__name__, type(net.blocks[0].norm1).__name__
        ('DecorrelatedBatchNorm', 'BatchNorm2d')
        >>> net(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"expected activation to be one of {', '.join(ACTIVATIONS)} (got {activation!r})")
    if init not in ("he", "lecun"):
        raise ValueError(f"expected init to be he or lecun (got {init!r})")
    factory = _find_factory(name)
    options: dict[str, Any] = {"width": width, "dropout": dropout, "norm_last": norm_last, "bias": norm == "none"}
    options["activation"] = None if activation == "relu" else ACTIVATIONS[activation]
    model: nn.Module = factory(num_classes, shape, **_select_options(name, factory, options))
    if init == "lecun":
        init_lecun_(model)
    if weights is not None:
        load_weights_(model, name, weights)
    if norm == "bn" and where == "all" and not norm_options:
        return model
    moments = {} if images is None else measure_batch_norms(model, images)
    place_(model, norm, where, **(norm_options or {}))
    return model if images is None else match_moments_(model, moments, images)


# torchvision has ResNets of depth 18, 34, 50, 101 and 152.
_PATTERNS: dict[str, Callable[[list[int]], partial[Any]]] = {
    r"mlp(-\d+)*": lambda numbers: partial(mlp, hidden=numbers),
    r"vgg-a": lambda numbers: partial(plain.vgg, plan=plain.VGG_A),
    r"vgg-16conv": lambda numbers: partial(plain.vgg, plan=plain.VGG_16CONV),
    r"s-plain-\d+": lambda numbers: partial(plain.s_plain, depth=numbers[0]),
    r"cnn-\d+": lambda numbers: partial(plain.cnn, depth=numbers[0]),
    r"resnet(?!18$|34$|50$|101$|152$)\d+": lambda numbers: partial(ResNet, depth=numbers[0]),
    r"bottleneck-\d+": lambda numbers: partial(ResNet, depth=numbers[0], block=Bottleneck),
    r"wrn-\d+-\d+": lambda numbers: partial(WideResNet, depth=numbers[0], width=numbers[1]),
}


def _find_factory(name: str) -> partial[Any]:
    """Return the function that builds a network, with the numbers in its name as arguments."""
    for pattern, bind_numbers in _PATTERNS.items():
        if re.fullmatch(pattern, name):
            return bind_numbers([int(number) for number in re.findall(r"(?<=-)\d+(?=-|$)|(?<=resnet)\d+", name)])
    if name.startswith(_TIMM):
        return partial(_build_timm, name=name.removeprefix(_TIMM))
    return partial(_build_torchvision, name=name)


def _select_options(name: str, factory: partial[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are set; raise a ValueError for one that the network lacks, except for ``bias``."""
    accepted = set(inspect.signature(factory).parameters) - set(factory.keywords)
    # Perceptrons and torchvision's nets decide on their biases themselves.
    options = {key: value for key, value in options.items() if value and (key in accepted or key != "bias")}
    unknown = sorted(set(options) - accepted)
    if unknown:
        raise ValueError(f"expected options that {name!r} has (got {', '.join(unknown)}); leave them out")
    return options


def _build_torchvision(num_classes: int, shape: tuple[int, int, int], *, name: str) -> nn.Module:
    from torchvision.models import get_model, list_models

    if name not in list_models():
        # Suggest also the nets above with the numbers of this name.
        similar = [re.sub(r"\d.*", "", known) + re.sub(r"^\D*", "", name) for known in NETS]
        similar = [known for known in similar if any(re.fullmatch(pattern, known) for pattern in _PATTERNS)]
        raise ValueError(
            f"expected a net such as {', '.join(NETS)}, torchvision's or {_TIMM}NAME (got {name!r})"
            f"{suggest(name, {*NETS, *similar, *list_models()})}"
        )
    if shape[0] != 3:
        raise ValueError(f"expected images of 3 channels for torchvision's {name} (got {shape[0]}); use another net")
    model: nn.Module = get_model(name, weights=None, num_classes=num_classes)
    return model


def _build_timm(num_classes: int, shape: tuple[int, int, int], *, name: str) -> nn.Module:
    timm = import_package("timm", f"{_TIMM}{name}")
    if not timm.is_model(name):
        raise ValueError(f"expected a net of timm (got {name!r}){suggest(name, timm.list_models())}")
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": shape[0]}
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is not None and pretrained.fixed_input_size:
        # Vision transformers are built for one image size.
        options["img_size"] = shape[1:]
    model: nn.Module = timm.create_model(name, **options)
    return model
