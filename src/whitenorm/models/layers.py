"""The layers by name: their classes, the groups that fit each width, and the options that a call may give."""

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
from whitenorm.models.norms import Norm
from whitenorm.models.parts import BatchNorm, LayerNorm2d, LayerWhitening2d
from whitenorm.ops.check import check_eps, largest_divisor, root_divisor
from whitenorm.solvers import Newton

LayerLike = str | Callable[[int], nn.Module]
Options = dict[str, Any]


class Target(NamedTuple):
    """A layer by name: its class, what it is given unless a call says otherwise, and how its groups are chosen.

    ``groups`` is the argument that says how channels are grouped, and ``wish`` what it is where the width allows.
    ``tokens`` is given to the layer that stands for it where features come last, as in LayerNorm.
    """

    kind: type[nn.Module]
    groups: str | None
    wish: int
    defaults: Options
    tokens: Options


_MIX = ("bw", "iw", "bn", "in", "ln")
_ZCA = {"solver": "zca"}
# Group sizes are the papers': 64 for IterNorm, BW_Σ and GW, 16 for DBN, SW and IW.
TARGETS = {
    "iternorm": Target(IterNorm, "group_size", 64, {}, {}),
    "dbn": Target(DecorrelatedBatchNorm, "group_size", 16, {}, _ZCA),
    "bw-sigma": Target(BatchWhitening, "group_size", 64, {**_ZCA, "population": "covariance"}, _ZCA),
    "sw": Target(SwitchableWhitening, "group_size", 16, {}, {}),
    "sw5": Target(SwitchableWhitening, "group_size", 16, {"statistics": _MIX}, {}),
    "gw": Target(GroupWhitening, "num_groups", 64, {}, {}),
    "iw": Target(InstanceWhitening, "group_size", 16, {}, {}),
    "bn": Target(BatchNorm, None, 0, {}, {}),
    "gn": Target(nn.GroupNorm, "num_groups", 32, {}, {}),
    "ln": Target(nn.LayerNorm, None, 0, {}, {}),
}
# Plain norms, for the way back.
PLAIN = ("bn", "gn", "ln")
NAMES = tuple(name for name in TARGETS if name not in PLAIN)
# The names that mean what they say where features come last.
_FOR_TOKENS = ("gw", "ln")
# What the papers and other libraries call an option.
_OTHER_NAMES = {"T": "steps", "epsilon": "eps"}
_NOT_OPTIONS = ("self", "num_features", "num_channels", "normalized_shape", "device", "dtype")


class Made(NamedTuple):
    """A new layer, and what is worth saying about it, with the remedy; nothing if it is what was asked for."""

    layer: nn.Module
    note: str = ""


def check_layer(layer: LayerLike, options: Options) -> None:
    """Raise unless the layer is known, and every option one of its own."""
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
    known_options = options_of(layer)
    unknown = [name for name in options if name not in known_options]
    if unknown:
        raise ValueError(
            f"expected options of {TARGETS[layer].kind.__name__} with {layer!r}: {', '.join(known_options)} (got "
            f"{', '.join(unknown)}){_suggest_option(unknown[0], known_options)}"
        )
    if "eps" in options:
        check_eps(options["eps"])


def _suggest_option(name: str, known: list[str]) -> str:
    meant = _OTHER_NAMES.get(name)
    return f"; did you mean {meant}?" if meant in known else suggest(name, known)


def options_of(name: str) -> list[str]:
    """The options that a layer's name takes: the arguments of its class.

    Example::

        >>> options_of("iw")
        ['group_size', 'solver', 'eps', 'affine', 'bias']
    """
    return [option for option in inspect.signature(TARGETS[name].kind).parameters if option not in _NOT_OPTIONS]


def named(name: str, width: int, **options: Any) -> nn.Module:
    """A layer of channels by its name in :func:`whitenorm.convert_`, with options of its own, and groups that fit.

    Example::

        >>> named("iternorm", 96, group_size=64, steps=3).group_size
        48
    """
    check_layer(name, options)
    return of_channels(name, width, options).layer


def of_channels(
    name: str, width: int, options: Options, inherited: Options | None = None, kind: type[nn.Module] | None = None
) -> Made:
    """A layer for ``(N, C, ...)``: by the options of the call, those inherited from the old norm, and its own."""
    target = TARGETS[name]
    # LayerNorm of channels and positions together is GroupNorm of one group.
    given = {"affine" if option == "elementwise_affine" else option: value for option, value in options.items()}
    merged = {**target.defaults, **(inherited or {}), **given}
    kind = kind or (nn.GroupNorm if name == "ln" else target.kind)
    # torch's norms have no such argument, and take a missing bias all the same.
    bias = merged.pop("bias", True) if name in PLAIN else True
    sizes: tuple[int, ...] = (width,)
    note = ""
    if target.groups is not None:
        merged[target.groups], note = _grouped(name, width, merged.get(target.groups), target.groups in options)
    if kind in (nn.GroupNorm, GroupWhitening):
        sizes = (merged.pop("num_groups", 1), width)
    layer = kind(*sizes, **merged)
    if not bias:
        layer.register_parameter("bias", None)
    return Made(layer, note)


def _grouped(name: str, width: int, wish: Any, given: bool) -> tuple[Any, str]:
    """The groups for a width, and what to say if they are not what was wished for."""
    groups = TARGETS[name].groups
    if given and (not isinstance(wish, int) or wish < 1):
        # All channels, or the layer's own error.
        return wish, ""
    wish = wish or TARGETS[name].wish
    chosen, most = largest_divisor(width, wish), min(wish, width)
    if chosen == most if given else 2 * chosen >= most and not (chosen == 1 < width and name in NAMES):
        return chosen, ""
    reason = f"{groups}={wish} does not divide the width {width}: " if chosen != most else ""
    means = f", which is {_ONE_GROUP[str(groups)]}" if chosen == 1 and name in NAMES else ""
    return chosen, f"{reason}{groups}={chosen}{means}; pass another {groups}, or leave the layer out with where="


_ONE_GROUP = {"group_size": "no whitening, but BatchNorm's scaling", "num_groups": "GroupNorm of one group"}


def of_tokens(name: str, norm: Norm, options: Options, inherited: Options) -> Made:
    """A layer for ``(..., C)``, or, in place of one of images, for each position of ``(N, C, H, W)``."""
    image, plain = norm.kind.endswith("2d"), name in PLAIN
    plain_kind, whitening_kind = (LayerNorm2d, LayerWhitening2d) if image else (nn.LayerNorm, LayerWhitening)
    kind: type[nn.Module] = plain_kind if plain else whitening_kind
    merged = {**TARGETS[name].tokens, **inherited, **options}
    merged = {"elementwise_affine" if option == "affine" else option: value for option, value in merged.items()}
    if "steps" in merged:
        merged["solver"] = Newton(merged.pop("steps"))
    taken = {option: value for option, value in merged.items() if option in inspect.signature(kind).parameters}
    note = ""
    if not plain:
        taken["num_groups"], note = _token_groups(math.prod(norm.shape), options.get("num_groups"))
    if name not in _FOR_TOKENS:
        left = sorted(option for option in options if option not in (*taken, "steps", "affine"))
        note = (
            f'"{name}" is for channels: where features come last, as in LayerNorm, {kind.__name__} stands for it'
            f"{', without ' if left else ''}{', '.join(left)}; leave such norms out with where=, or ask for "
            f'"{"ln" if plain else "gw"}" there'
        )
    return Made(kind(norm.shape, **taken), note)


def _token_groups(width: int, wish: int | None) -> tuple[int, str]:
    chosen = root_divisor(width) if wish is None else largest_divisor(width, wish)
    if chosen == wish or (wish is None and (chosen > 1 or width == 1)):
        return chosen, ""
    reason = f"num_groups={wish} does not divide" if wish else "no number of groups near its root divides"
    means = ", which is LayerNorm" if chosen == 1 else ""
    return (
        chosen,
        f"{reason} the width {width}: num_groups={chosen}{means}; pass num_groups, or leave it out with where=",
    )


def of_function(function: Callable[[int], nn.Module], width: int) -> nn.Module:
    """The layer that a user's function makes, which must be one of this width."""
    new = function(width)
    if not isinstance(new, nn.Module):
        raise ValueError(f"expected the function to return a layer for width {width} (got {new!r})")
    sizes = [getattr(new, name, None) for name in ("num_features", "num_channels", "normalized_shape")]
    got = next((math.prod(size) if isinstance(size, tuple) else size for size in sizes if size is not None), width)
    if got != width:
        raise ValueError(
            f"expected the function to return a layer for width {width} (got {type(new).__name__} for {got}); it is "
            "called with the width of each norm: lambda width: whitenorm.IterNorm(width)"
        )
    return new
