"""Placement of norms in networks, by name."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from torch import nn

from whitenorm.models import WHITENING_NAMES as WHITENING
from whitenorm.models import LayerLike, Where, convert_, find_norms

NAMES = ("bn", "gn", "ln", "in", "none", *WHITENING)
"""Norms that :func:`place_` accepts by name."""


def place_(model: nn.Module, norm: LayerLike, where: Where = "all", **options: Any) -> nn.Module:
    """Replace a model's BatchNorms by another norm, at the places of a recipe, and return the model.

    Args:
        model: a model with BatchNorm.
        norm: ``"bn"`` keeps BatchNorm, ``"none"`` removes it, ``"in"`` is GroupNorm with one channel per group; the
            other names are those of :func:`whitenorm.convert_`. Or a function from the number of channels to a norm.
        where: name of a recipe or a filter, as in :func:`whitenorm.convert_`.
        options: options of the norm: ``group_size``, ``num_groups``, ``steps``, ``solver``, ``eps``, ``affine``, ….

    Example::

        >>> place_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gn", num_groups=4)[1].num_groups
        4
    """
    if isinstance(norm, str) and norm not in NAMES:
        raise ValueError(f"expected norm to be one of {', '.join(NAMES)} (got {norm!r})")
    with warnings.catch_warnings():
        # The lab calibrates or trains a network with trained weights after this.
        warnings.filterwarnings("ignore", "this model is trained")
        if norm == "none":
            return convert_(model, lambda num_channels: nn.Identity(), where) if find_norms(model) else model
        if norm == "in":
            return convert_(model, partial(_build_instance_norm, options), where)
        if norm == "bn":
            # Without options, the model's BatchNorms stay as they are.
            warnings.filterwarnings("ignore", "nothing is converted")
        return convert_(model, norm, where, **options)


def _build_instance_norm(options: dict[str, Any], num_channels: int) -> nn.Module:
    if unknown := [name for name in options if name not in ("eps", "affine")]:
        raise ValueError(f"expected options of 'in': eps, affine (got {', '.join(unknown)})")
    return nn.GroupNorm(num_channels, num_channels, **options)
