"""Whitening layers for timm: a ``norm_layer=`` for its models, and names for its configurations."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from whitenorm.layers import LayerWhitening
from whitenorm.models import WHITENING_NAMES, Activated, LayerWhitening2d
from whitenorm.models.targets import TARGETS, check_layer, make_channel_layer

try:
    from timm.layers import create_norm, create_norm_act
    from timm.layers.create_act import create_act_layer
except ImportError as error:
    raise ImportError("expected timm for whitenorm.integrations.timm (got none); run pip install timm") from error

__all__ = ["norm_layer", "register"]

# Layers that whiten at each position, for tokens (..., C) and for maps (N, C, H, W).
_POSITIONWISE: dict[str, type[LayerWhitening]] = {"lw": LayerWhitening, "lw2d": LayerWhitening2d}
# Arguments that timm passes to every BatchNorm; layers without population statistics ignore them.
_POPULATION_ARGUMENTS = ("momentum", "track_running_stats")


def norm_layer(name: str, **options: Any) -> Callable[..., nn.Module]:
    """Return a factory for the ``norm_layer=`` of timm's models.

    It works for families with separate norms, and for families that fuse norms with dropout and an activation. The
    name to use depends on what the family normalizes:

    - channels of maps ``(N, C, H, W)``: ``"iternorm"``, ``"dbn"``, ``"bw-sigma"``, ``"sw"``, ``"sw5"``, ``"gw"``,
      ``"iw"``, as in :func:`whitenorm.convert_`. Group sizes are the papers', or the largest smaller
      divisor of the width.
    - features of tokens ``(N, L, C)`` or ``(N, H, W, C)``, as in ViT and Swin: ``"lw"``, for
      :class:`whitenorm.LayerWhitening`.
    - the channels of maps at each position, as with timm's LayerNorm2d: ``"lw2d"``.

    Arguments that a family passes to its norms, such as ε, are used unless ``options`` has them.

    Args:
        name: the layer's name.
        options: arguments of the layer, such as ``steps=7``.

    Example::

        >>> import timm
        >>> model = timm.create_model("resnet18", norm_layer=norm_layer("iternorm", steps=3))
        >>> type(model.bn1).__name__, model.bn1.solver
        ('IterNorm', Newton(steps=3))
    """
    _check(name, options)
    return functools.partial(_create, method=name, options=options)


def register() -> None:
    """Register the names of :func:`norm_layer` in timm, for its arguments that take a norm's name.

    Names have no hyphens there: ``"iternorm"``, ``"dbn"``, ``"bwsigma"``, ``"sw"``, ``"sw5"``, ``"gw"``,
    ``"iw"``, ``"lw"``, ``"lw2d"``.

    Example::

        >>> import timm
        >>> register()
        >>> timm.layers.create_norm_layer("iternorm", 64).group_size
        64
        >>> timm.create_model("efficientnet_b0", norm_layer="gw").bn1[0].num_groups
        32
    """
    for name in (*WHITENING_NAMES, *_POSITIONWISE):
        factory: Any = norm_layer(name)
        key = name.replace("-", "")
        for names in (create_norm._NORM_MAP, create_norm_act._NORM_ACT_MAP):
            names[key] = factory
        _pass_activation(factory)


def _create(
    num_features: int,
    apply_act: bool = True,
    act_layer: Any = None,
    act_kwargs: dict[str, Any] | None = None,
    inplace: bool = True,
    drop_layer: Callable[[], nn.Module] | None = None,
    *,
    method: str,
    options: dict[str, Any],
    **passed: Any,
) -> nn.Module:
    """Create a layer, followed by dropout and an activation where timm asks for them."""
    layer = _make_layer(method, num_features, options, passed)
    after = [] if drop_layer is None else [drop_layer()]
    if apply_act and act_layer is not None:
        after.append(create_act_layer(act_layer, **{"inplace": inplace, **(act_kwargs or {})}))
    after = [module for module in after if not isinstance(module, nn.Identity)]
    return Activated(layer, *after) if after else layer


def _pass_activation(factory: Any) -> None:
    """Make timm pass the activation, which it otherwise passes only to its own classes."""
    create_norm_act._NORM_ACT_REQUIRES_ARG.add(factory)


_pass_activation(_create)


def _make_layer(method: str, width: int, options: dict[str, Any], passed: dict[str, Any]) -> nn.Module:
    accepted = _list_arguments(method)
    unknown = [argument for argument in passed if argument not in (*accepted, *_POPULATION_ARGUMENTS)]
    if unknown:
        raise TypeError(
            f"expected arguments of {_find_class(method).__name__} from the model (got {', '.join(unknown)}); build "
            "the model with its own norm, and call whitenorm.convert_ on it"
        )
    passed = {argument: value for argument, value in passed.items() if argument in accepted}
    if method in _POSITIONWISE:
        return _POSITIONWISE[method](width, **{**passed, **options})
    layer, note = make_channel_layer(method, width, options, passed)
    if note:
        warnings.warn(f"a layer of {method!r} is not as requested: {note}", stacklevel=4)
    return layer


def _find_class(method: str) -> type[nn.Module]:
    return _POSITIONWISE[method] if method in _POSITIONWISE else TARGETS[method].kind


def _list_arguments(method: str) -> list[str]:
    return list(inspect.signature(_find_class(method)).parameters)


def _check(name: str, options: dict[str, Any]) -> None:
    if name in WHITENING_NAMES:
        check_layer(name, options)
        return
    if name not in _POSITIONWISE:
        known = ", ".join(f'"{known}"' for known in (*WHITENING_NAMES, *_POSITIONWISE))
        raise ValueError(f"expected the name of a whitening layer, one of {known} (got {name!r})")
    unknown = [option for option in options if option not in _list_arguments(name)]
    if unknown:
        raise ValueError(f"expected options of LayerWhitening with {name!r} (got {', '.join(unknown)})")
