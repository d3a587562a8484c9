"""Norms by name: BatchNorm and its relatives, none at all, and whitenorm's."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from torch import nn

from whitenorm.models import WHITENING_NAMES as WHITENING
from whitenorm.models import LayerLike, Where, convert_, find_norms

NAMES = ("bn", "gn", "ln", "in", "none", *WHITENING)
"""The norms that :func:`place_` knows by name."""


def place_(model: nn.Module, norm: LayerLike, where: Where = "all", **options: Any) -> nn.Module:
    """Put a norm in the places of a model's BatchNorms that a recipe names, and return the model.

    Args:
        model: with BatchNorm.
        norm: ``"none"`` takes it out, ``"in"`` is GroupNorm with one channel a group; the others are
            :func:`whitenorm.convert_`'s names, of which ``"bn"`` leaves it, or a function from width to norm.
        where: a recipe's name or a filter, as in :func:`whitenorm.convert_`.
        options: of the norm: ``group_size``, ``num_groups``, ``steps``, ``solver``, ``eps``, ``affine``, ….

    Example::

        >>> place_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gn", num_groups=4)[1].num_groups
        4
    """
    if isinstance(norm, str) and norm not in NAMES:
        raise ValueError(f"expected norm to be one of {', '.join(NAMES)} (got {norm!r})")
    with warnings.catch_warnings():
        # Networks of the lab that have trained weights are calibrated or trained after this.
        warnings.filterwarnings("ignore", "this model is trained")
        if norm == "none":
            return convert_(model, lambda width: nn.Identity(), where) if find_norms(model) else model
        if norm == "in":
            return convert_(model, partial(_instance, options), where)
        # "bn" with nothing else asked for is what the model has.
        if norm == "bn":
            warnings.filterwarnings("ignore", "nothing is converted")
        return convert_(model, norm, where, **options)


def _instance(options: dict[str, Any], width: int) -> nn.Module:
    if unknown := [name for name in options if name not in ("eps", "affine")]:
        raise ValueError(f"expected options of 'in': eps, affine (got {', '.join(unknown)})")
    return nn.GroupNorm(width, width, **options)
