"""Norms by name: BatchNorm and its relatives, none at all, and whitenorm's."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from whitenorm.models import convert_
from whitenorm.models.layers import NAMES as WHITENING
from whitenorm.models.layers import LayerLike, fit, named
from whitenorm.models.norms import find_norms
from whitenorm.models.recipes import Where, plan
from whitenorm.models.replace import replace_

NAMES = ("bn", "gn", "ln", "in", "none", *WHITENING)


def place_(model: nn.Module, norm: LayerLike, where: Where = "all", **options: Any) -> nn.Module:
    """Put a norm in the places of a model's BatchNorms that a recipe names, and return the model.

    Args:
        model: with BatchNorm.
        norm: ``"bn"`` leaves it, ``"none"`` takes it out, ``"gn"``, ``"ln"`` and ``"in"`` are GroupNorm with 32 groups,
            one, and one a channel; the others are :func:`whitenorm.convert_`'s names, or a function from width to norm.
        where: a recipe's name or a filter, as in :func:`whitenorm.convert_`.
        options: of the norm: ``group_size``, ``num_groups``, ``steps``, ``solver``, ``eps``, ``affine``, ….

    Example::

        >>> place_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gn", num_groups=4)[1].num_groups
        4
    """
    if not isinstance(norm, str):
        return convert_(model, norm, where)
    if norm not in NAMES:
        raise ValueError(f"expected norm to be one of {', '.join(NAMES)} (got {norm!r})")
    if norm in ("bn", "none"):
        if norm == "none" and not find_norms(model):
            return model
        changes = plan(model, lambda width: nn.Identity(), where)
        kept = {change.old: _batch(change.old, options) if norm == "bn" else change.new for change in changes}
        return replace_(model, kept)
    if norm in ("gn", "ln", "in"):
        return convert_(model, partial(_group, norm, options), where)
    # By name, convert_ knows more: how many groups a vector has for GW.
    return convert_(model, partial(_whitening, norm, options) if options else norm, where)


def _batch(old: nn.Module, options: dict[str, Any]) -> nn.Module:
    if not options or not isinstance(old, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return old
    return _checked("bn", type(old), old.num_features, **options)


def _group(norm: str, options: dict[str, Any], width: int) -> nn.Module:
    if norm != "gn" and "num_groups" in options:
        raise ValueError(f'expected num_groups with "gn" or "gw" only (got it with {norm!r}, which has its own)')
    options = dict(options)
    groups = {"gn": fit(width, options.pop("num_groups", 32)), "ln": 1, "in": width}[norm]
    return _checked(norm, nn.GroupNorm, groups, width, **options)


def _whitening(norm: str, options: dict[str, Any], width: int) -> nn.Module:
    return _checked(norm, partial(named, norm), width, **options)


def _checked(norm: str, make: Any, *sizes: int, **options: Any) -> nn.Module:
    try:
        return make(*sizes, **options)
    except TypeError as error:
        given = ", ".join(options)
        raise ValueError(f"expected options that {norm!r} has (got {given}): {error}") from error
