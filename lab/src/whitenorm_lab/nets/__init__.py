"""The nets of the papers, with any norm at any place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from whitenorm._suggest import suggest
from whitenorm.models import LayerLike, Where
from whitenorm_lab.nets import plain, vgg
from whitenorm_lab.nets.calibration import batch_norm_outputs, match_
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.nets.norms import NAMES as NORMS
from whitenorm_lab.nets.norms import place_
from whitenorm_lab.nets.parts import Activation, TReLU, lecun_, relu
from whitenorm_lab.nets.pretrained import needed, with_weights_
from whitenorm_lab.nets.resnet import Bottleneck, ResNet
from whitenorm_lab.nets.wrn import WideResNet

__all__ = ["ACTIVATIONS", "NETS", "NORMS", "build", "place_"]

ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "elu": lambda channels: nn.ELU(),
    "tanh": lambda channels: nn.Tanh(),
    "trelu": TReLU,
}
"""Activations by name, each a function from the number of channels to a module."""
NETS = ("mlp-100-100", "vgg-a", "vgg-16conv", "s-plain-20", "cnn-4", "resnet20", "bottleneck-29", "wrn-28-10")
"""One name of each kind that :func:`build` knows besides torchvision's and timm's; other numbers are other nets."""
_TIMM = "timm:"


def build(
    name: str,
    classes: int,
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
    """A net by name, with a norm at the places that a recipe names and BatchNorm elsewhere.

    Args:
        name: ``"mlp-128-64"`` with its hidden widths (``"mlp"`` is a linear classifier), ``"vgg-a"``, ``"vgg-16conv"``,
            ``"s-plain-44"``, ``"cnn-4"``, ``"resnet20"``, ``"bottleneck-29"`` (a ResNet with bottleneck blocks) and
            ``"wrn-28-10"`` with their depths, torchvision's names, or ``"timm:resnet26d"`` with timm's.
        classes: of the classifier.
        norm: a name (see :func:`place_`) or a function from width to norm.
        where: a recipe's name (see :mod:`whitenorm.recipes`) or a filter.
        shape: of an image, ``(C, H, W)``.
        activation: ``"relu"``, ``"elu"``, ``"tanh"`` or ``"trelu"``, the translated ReLU of DBN's text.
        width: of S-plain (48), the CNN (16), and the first layers of VGG (64) and the ResNets (16).
        dropout: in the blocks of a wide residual net.
        norm_last: the norm after the activation, in VGG nets.
        init: ``"he"`` leaves the weights as the nets' own codes have them, ``"lecun"`` is that of DBN's text.
        norm_options: such as ``{"group_size": 16, "affine": False}``.
        weights: ``"imagenet"`` or a file, of the net with BatchNorm, which the norm then takes the place of.
        images: for norms that keep no population, which trained outputs are matched on
            (:mod:`whitenorm_lab.nets.calibration`).

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
    maker = _maker(name)
    options: dict[str, Any] = {"width": width, "dropout": dropout, "norm_last": norm_last, "bias": norm == "none"}
    options["activation"] = None if activation == "relu" else ACTIVATIONS[activation]
    model: nn.Module = maker(classes, shape, **_taken(name, maker, options))
    if init == "lecun":
        lecun_(model)
    if weights is not None:
        with_weights_(model, name, weights)
    if norm == "bn" and where == "all" and not norm_options:
        return model
    trained = {} if images is None else batch_norm_outputs(model, images)
    place_(model, norm, where, **(norm_options or {}))
    return model if images is None else match_(model, trained, images)


# torchvision's ResNets for large images include depths of 6n + 2 too.
_PATTERNS: dict[str, Callable[[list[int]], partial[Any]]] = {
    r"mlp(-\d+)*": lambda numbers: partial(mlp, hidden=numbers),
    r"vgg-a": lambda numbers: partial(vgg.vgg, plan=vgg.VGG_A),
    r"vgg-16conv": lambda numbers: partial(vgg.vgg, plan=vgg.VGG_16CONV),
    r"s-plain-\d+": lambda numbers: partial(plain.s_plain, depth=numbers[0]),
    r"cnn-\d+": lambda numbers: partial(plain.cnn, depth=numbers[0]),
    r"resnet(?!18$|34$|50$|101$|152$)\d+": lambda numbers: partial(ResNet, depth=numbers[0]),
    r"bottleneck-\d+": lambda numbers: partial(ResNet, depth=numbers[0], block=Bottleneck),
    r"wrn-\d+-\d+": lambda numbers: partial(WideResNet, depth=numbers[0], width=numbers[1]),
}


def _maker(name: str) -> partial[Any]:
    """The function of a name, with the numbers in the name as arguments."""
    for pattern, maker in _PATTERNS.items():
        if re.fullmatch(pattern, name):
            return maker([int(number) for number in re.findall(r"(?<=-)\d+(?=-|$)|(?<=resnet)\d+", name)])
    if name.startswith(_TIMM):
        return partial(_timm, name=name.removeprefix(_TIMM))
    return partial(_torchvision, name=name)


def _taken(name: str, maker: partial[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that are set, which the net must have; linear layers and torchvision's nets keep their own biases."""
    own = set(inspect.signature(maker).parameters) - set(maker.keywords)
    options = {key: value for key, value in options.items() if value and (key in own or key != "bias")}
    left = sorted(set(options) - own)
    if left:
        raise ValueError(f"expected options that {name!r} has (got {', '.join(left)}); leave them out")
    return options


def _torchvision(classes: int, shape: tuple[int, int, int], *, name: str) -> nn.Module:
    from torchvision.models import get_model, list_models

    if name not in list_models():
        # Our own with the numbers that the name has.
        families = [re.sub(r"\d.*", "", known) + re.sub(r"^\D*", "", name) for known in NETS]
        families = [family for family in families if any(re.fullmatch(pattern, family) for pattern in _PATTERNS)]
        raise ValueError(
            f"expected a net such as {', '.join(NETS)}, torchvision's or {_TIMM}NAME (got {name!r})"
            f"{suggest(name, {*NETS, *families, *list_models()})}"
        )
    if shape[0] != 3:
        raise ValueError(f"expected images of 3 channels for torchvision's {name} (got {shape[0]}); use another net")
    model: nn.Module = get_model(name, weights=None, num_classes=classes)
    return model


def _timm(classes: int, shape: tuple[int, int, int], *, name: str) -> nn.Module:
    timm = needed("timm", f"{_TIMM}{name}")
    if not timm.is_model(name):
        raise ValueError(f"expected a net of timm (got {name!r}){suggest(name, timm.list_models())}")
    options: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is not None and pretrained.fixed_input_size:
        # Transformers are made for one size.
        options["img_size"] = shape[1:]
    model: nn.Module = timm.create_model(name, **options)
    return model
