"""Conversion targets: the layers that ``convert_`` knows by name, with group sizes that fit each width."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from whitenorm._suggest import suggest
from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)
from whitenorm.models.modules import BatchNorm, LayerNorm2d, LayerWhitening2d
from whitenorm.models.norms import Norm
from whitenorm.ops.check import check_eps, largest_divisor, root_divisor
from whitenorm.solvers import Newton

LayerLike = str | Callable[[int], nn.Module]
"""A layer's name in :func:`whitenorm.convert_`, or a function from width to layer."""

Options = dict[str, Any]


class Target(NamedTuple):
    """A layer that ``convert_`` knows by name.

    Attributes:
        kind: the layer's class.
        group_option: the argument that sets how channels are grouped, if there is one.
        default_groups: that argument's value where the width allows it.
        defaults: other arguments, unless the call gives them.
        token_defaults: arguments of the layer that replaces it where features come last, as in LayerNorm.
    """

    kind: type[nn.Module]
    group_option: str | None
    default_groups: int
    defaults: Options
    token_defaults: Options


_ALL_STATISTICS = ("bw", "iw", "bn", "in", "ln")
_ZCA = {"solver": "zca"}
# Group sizes are the papers': 64 for IterNorm, BW_Σ and GW, 16 for DBN, SW and IW.
TARGETS = {
    "iternorm": Target(IterNorm, "group_size", 64, {}, {}),
    "dbn": Target(DecorrelatedBatchNorm, "group_size", 16, {}, _ZCA),
    "bw-sigma": Target(BatchWhitening, "group_size", 64, {**_ZCA, "population": "covariance"}, _ZCA),
    "sw": Target(SwitchableWhitening, "group_size", 16, {}, {}),
    "sw5": Target(SwitchableWhitening, "group_size", 16, {"statistics": _ALL_STATISTICS}, {}),
    "gw": Target(GroupWhitening, "num_groups", 64, {}, {}),
    "iw": Target(InstanceWhitening, "group_size", 16, {}, {}),
    "bn": Target(BatchNorm, None, 0, {}, {}),
    "gn": Target(nn.GroupNorm, "num_groups", 32, {}, {}),
    "ln": Target(nn.LayerNorm, None, 0, {}, {}),
}
# Plain norms, to convert back.
PLAIN_NAMES = ("bn", "gn", "ln")
WHITENING_NAMES = tuple(name for name in TARGETS if name not in PLAIN_NAMES)
"""The names of the whitening layers in :func:`whitenorm.convert_`, without the plain norms."""

# Names that have the same meaning where features come last.
_TOKEN_NAMES = ("gw", "ln")
# What the papers and other libraries call an option.
_OTHER_NAMES = {"T": "steps", "epsilon": "eps"}
_NOT_OPTIONS = ("self", "num_features", "num_channels", "normalized_shape", "device", "dtype")


class NewLayer(NamedTuple):
    """A new layer, and a note on what is not as requested, with a suggested fix; the note may be empty."""

    module: nn.Module
    note: str = ""


def check_layer(layer: LayerLike, options: Options) -> None:
    """Raise unless the layer is known and takes all of the options."""
    if isinstance(layer, nn.Module):
        raise ValueError(
            f"expected layer to be a name or a function from width to layer (got a layer, {type(layer).__name__}); "
            "every norm needs one of its own: lambda width: ..."
        )
    if not isinstance(layer, str):
        if not callable(layer):
            raise ValueError(f"expected layer to be a name or a function from width to layer (got {layer!r})")
        if options:
            raise ValueError(
                f"expected no options beside a function (got {', '.join(options)}); give them to the layer inside it: "
                "lambda width: whitenorm.IterNorm(width, steps=7)"
            )
        return
    if layer not in TARGETS:
        known = ", ".join(f'"{name}"' for name in TARGETS)
        raise ValueError(
            f"expected layer to be one of {known}, or a function from width to layer (got {layer!r})"
            f"{suggest(layer, TARGETS)}"
        )
    known_options = list_options(layer)
    unknown = [name for name in options if name not in known_options]
    if unknown:
        raise ValueError(
            f"expected options of {TARGETS[layer].kind.__name__} with {layer!r}: {', '.join(known_options)} (got "
            f"{', '.join(unknown)}){_suggest_option(unknown[0], known_options)}"
        )
    if "eps" in options:
        check_eps(options["eps"])


def _suggest_option(name: str, known: list[str]) -> str:
    other = _OTHER_NAMES.get(name)
    return f"; did you mean {other}?" if other in known else suggest(name, known)


def list_options(name: str) -> list[str]:
    """Return the options that a layer's name takes, which are the arguments of its class.

    Example::

        >>> list_options("iw")
        ['group_size', 'solver', 'eps', 'affine', 'bias']
    """
    return [option for option in inspect.signature(TARGETS[name].kind).parameters if option not in _NOT_OPTIONS]


def make_channel_layer(
    name: str, width: int, options: Options, inherited: Options | None = None, kind: type[nn.Module] | None = None
) -> NewLayer:
    """Make a layer for inputs ``(N, C, ...)``.

    Args:
        name: the layer's name in :func:`whitenorm.convert_`.
        width: number of channels.
        options: arguments that the user gives.
        inherited: arguments that follow from the norm to replace; ``options`` come first.
        kind: a class to use instead of the name's.

    Example::

        >>> make_channel_layer("iternorm", 96, {"group_size": 64, "steps": 3}).module.group_size
        48
    """
    target = TARGETS[name]
    # LayerNorm over channels and positions together is GroupNorm with one group.
    explicit = {"affine" if option == "elementwise_affine" else option: value for option, value in options.items()}
    merged = {**target.defaults, **(inherited or {}), **explicit}
    kind = kind or (nn.GroupNorm if name == "ln" else target.kind)
    # torch's norms have no bias argument, but work with a missing bias.
    has_bias = merged.pop("bias", True) if name in PLAIN_NAMES else True
    sizes: tuple[int, ...] = (width,)
    note = ""
    if target.group_option is not None:
        requested = merged.get(target.group_option)
        merged[target.group_option], note = _fit_groups(name, width, requested, target.group_option in options)
    if kind in (nn.GroupNorm, GroupWhitening):
        sizes = (merged.pop("num_groups", 1), width)
    layer = kind(*sizes, **merged)
    if not has_bias:
        layer.register_parameter("bias", None)
    return NewLayer(layer, note)


_ONE_GROUP = {"group_size": "no whitening, but BatchNorm's scaling", "num_groups": "GroupNorm of one group"}


def _fit_groups(name: str, width: int, requested: Any, is_explicit: bool) -> tuple[Any, str]:
    """Return the group argument that fits a width, and a note if it is not the requested one."""
    option = str(TARGETS[name].group_option)
    if is_explicit and (not isinstance(requested, int) or requested < 1):
        # None means all channels; the layer itself rejects the rest.
        return requested, ""
    requested = requested or TARGETS[name].default_groups
    groups, limit = largest_divisor(width, requested), min(requested, width)
    is_useless = groups == 1 < width and name in WHITENING_NAMES
    if groups == limit if is_explicit else 2 * groups >= limit and not is_useless:
        return groups, ""
    reason = f"{option}={requested} does not divide the width {width}: " if groups != limit else ""
    meaning = f", which is {_ONE_GROUP[option]}" if groups == 1 and name in WHITENING_NAMES else ""
    return groups, f"{reason}{option}={groups}{meaning}; pass another {option}, or leave the layer out with where="


def make_token_layer(name: str, norm: Norm, options: Options, inherited: Options) -> NewLayer:
    """Make a layer for inputs ``(..., C)``, or, if the norm is one of images, for each position of ``(N, C, H, W)``."""
    is_image, is_plain = norm.kind.endswith("2d"), name in PLAIN_NAMES
    plain_kind, whitening_kind = (LayerNorm2d, LayerWhitening2d) if is_image else (nn.LayerNorm, LayerWhitening)
    kind: type[nn.Module] = plain_kind if is_plain else whitening_kind
    merged = {**TARGETS[name].token_defaults, **inherited, **options}
    merged = {"elementwise_affine" if option == "affine" else option: value for option, value in merged.items()}
    if "steps" in merged:
        merged["solver"] = Newton(merged.pop("steps"))
    arguments = {option: value for option, value in merged.items() if option in inspect.signature(kind).parameters}
    note = ""
    if not is_plain:
        arguments["num_groups"], note = _fit_token_groups(math.prod(norm.shape), options.get("num_groups"))
    if name not in _TOKEN_NAMES:
        unused = sorted(option for option in options if option not in (*arguments, "steps", "affine"))
        note = (
            f'"{name}" is for channels: where features come last, as in LayerNorm, {kind.__name__} stands for it'
            f"{', without ' if unused else ''}{', '.join(unused)}; leave such norms out with where=, or ask for "
            f'"{"ln" if is_plain else "gw"}" there'
        )
    return NewLayer(kind(norm.shape, **arguments), note)


def _fit_token_groups(width: int, requested: int | None) -> tuple[int, str]:
    groups = root_divisor(width) if requested is None else largest_divisor(width, requested)
    if groups == requested or (requested is None and (groups > 1 or width == 1)):
        return groups, ""
    reason = f"num_groups={requested} does not divide" if requested else "no number of groups near its root divides"
    meaning = ", which is LayerNorm" if groups == 1 else ""
    note = f"{reason} the width {width}: num_groups={groups}{meaning}; pass num_groups, or leave it out with where="
    return groups, note


def make_function_layer(function: Callable[[int], nn.Module], width: int) -> nn.Module:
    """Make a layer with the user's function, and raise unless it is a layer of this width."""
    layer = function(width)
    if not isinstance(layer, nn.Module):
        raise ValueError(f"expected the function to return a layer for width {width} (got {layer!r})")
    sizes = [getattr(layer, name, None) for name in ("num_features", "num_channels", "normalized_shape")]
    actual = next((math.prod(size) if isinstance(size, tuple) else size for size in sizes if size is not None), width)
    if actual != width:
        raise ValueError(
            f"expected the function to return a layer for width {width} (got {type(layer).__name__} for {actual}); it "
            "is called with the width of each norm: lambda width: whitenorm.IterNorm(width)"
        )
    return layer
