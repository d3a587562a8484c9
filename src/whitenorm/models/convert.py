"""Whitening in place of the norms of any model, in one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from whitenorm.models.layers import LayerLike
from whitenorm.models.recipes import REPLACE_ANYWAY, Plan, Where, plan
from whitenorm.models.record import record_
from whitenorm.models.replace import leave_fast_path, replace_
from whitenorm.models.transfer import take_hooks

# Names in a warning; a large model has hundreds.
_SHOWN = 8


def convert_(
    model: nn.Module, layer: LayerLike, where: Where = "all", *, keep_eps: bool = False, **options: Any
) -> nn.Module:
    """Replace norms by whitening layers, in place, and return the model.

    Replaced are BatchNorm of any dimension, SyncBatchNorm, FrozenBatchNorm, timm's BatchNormAct (with its activation),
    InstanceNorm, GroupNorm (which keeps its number of groups as ``"gw"``), LayerNorm and RMSNorm, torch's and those of
    other libraries that have its form (both by :class:`LayerWhitening`), and whitening layers themselves. With
    ``"bn"``, ``"gn"`` and ``"ln"`` they become plain norms again.

    Parameters, device, dtype, training mode, requires_grad, momentum and hooks carry over; a layer in place of a frozen
    norm learns nothing. From a trained BatchNorm the population carries over too, so that with ``"iternorm"``,
    ``"dbn"`` and ``"bw-sigma"`` the model's output in eval mode is what it was. Everything else computes another
    function, and where a model is trained (its norms have counted batches, or have values that differ by channel) a
    warning names the layers and the remedy: :func:`recalibrate_` where a batch method has no such population yet, and
    fine-tuning. What was converted is told by :func:`conversion_of`, and kept in the configuration of a transformers
    model.

    Norms whose replacement would lose something stay as they are: subclasses with a forward or tensors of their own,
    parametrized norms, and those whose forward was replaced. Subclasses that are known, such as timm's, are converted.
    The exact name of a norm in ``where`` asks for it all the same. If no norm can be replaced, that is an error.

    One more warning names the norms that stay, and the layers that could not become what was asked for, with the
    remedy: those of a width that has no fitting divisor, and norms of tokens where a method of channels is named.
    :func:`whitenorm.recipes.plan` shows all of it beforehand. Where every norm is already what it would become, nothing
    changes, and a warning says so.

    Args:
        model: any module; one that is a norm itself is not changed, but returned as its replacement.
        layer: ``"iternorm"``, ``"dbn"``, ``"bw-sigma"``, ``"sw"``, ``"sw5"``, ``"gw"``, ``"iw"``, ``"bn"``, ``"gn"``,
            ``"ln"``, or a function from the old norm's width to a new layer. Group sizes are the papers', or the
            largest divisor of the width below.
        where: ``"all"``, a recipe's name (see :mod:`whitenorm.recipes`), a list of module names or patterns such as
            ``["bn1", "layer4", "*.bn2"]``, or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the ε of the old norms instead of their own.
        options: the layer's own arguments, such as ``steps=7``, ``group_size=32``, ``eps=1e-3``, ``momentum=0.01``,
            ``solver="newton"``.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> layer = convert_(model, "iternorm", group_size=4, steps=7)[1]
        >>> layer.group_size, layer.solver
        (4, Newton(steps=7))
    """
    changes = plan(model, layer, where, keep_eps=keep_eps, **options)
    _warn(changes)
    if not changes:
        warnings.warn(
            f"nothing is converted: all norms at where={where!r} already are what {layer!r} would make of them",
            stacklevel=2,
        )
        return model
    for change in changes:
        # A layer that stays inside the new one keeps its own.
        if change.old not in change.new.modules():
            take_hooks(change.new, change.old)
    converted = replace_(model, {change.old: change.new for change in changes})
    leave_fast_path(converted)
    record_(converted)
    return converted


def _warn(changes: Plan) -> None:
    """Warn once of all that is not as asked, and once of a trained model's output."""
    notes = _names_by_note((change.name, change.note) for change in changes)
    skipped = _names_by_note((name, f"{why}; it stays") for name, why in changes.skipped.items())
    if notes or skipped:
        anyway = f"\n{REPLACE_ANYWAY}" if skipped else ""
        warnings.warn(
            f"some layers are not what was asked for, or not what they were:{_lines({**notes, **skipped})}{anyway}",
            stacklevel=3,
        )
    effects = _names_by_note((change.name, change.effect) for change in changes)
    if effects:
        warnings.warn(f"this model is trained, and its output in eval mode changes:{_lines(effects)}", stacklevel=3)


def _names_by_note(notes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, note in notes:
        if note:
            names.setdefault(note, []).append(name or "the model")
    return names


def _lines(names: dict[str, list[str]]) -> str:
    return "".join(f"\n  {_few(named)}: {note}" for note, named in names.items())


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more (recipes.plan lists all)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
