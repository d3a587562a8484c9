"""Convert the norms of a model to whitening layers."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from whitenorm.models.notes import format_notes
from whitenorm.models.recipes import REPLACE_ANYWAY, Plan, Where, plan
from whitenorm.models.record import store_record_
from whitenorm.models.replace import disable_fast_path_, replace_
from whitenorm.models.targets import LayerLike
from whitenorm.models.transfer import transfer_hooks


def convert_(
    model: nn.Module, layer: LayerLike, where: Where = "all", *, keep_eps: bool = False, **options: Any
) -> nn.Module:
    """Replace norms by whitening layers, in place, and return the model.

    These norms are replaced: BatchNorm of any dimension, SyncBatchNorm, FrozenBatchNorm, timm's BatchNormAct (with its
    activation), InstanceNorm, GroupNorm (which keeps its number of groups with ``"gw"``), LayerNorm and RMSNorm (both
    by :class:`LayerWhitening`), their equivalents in other libraries, and whitening layers themselves. ``"bn"``,
    ``"gn"`` and ``"ln"`` turn whitening layers back into plain norms.

    Parameters, device, dtype, training mode, ``requires_grad``, momentum and hooks carry over; the layer that replaces
    a frozen norm is frozen. A trained BatchNorm's population statistics carry over too, so with ``"iternorm"``,
    ``"dbn"`` and ``"bw-sigma"`` the model's output in eval mode does not change. Every other conversion computes a
    different function. If the model is trained (its norms have counted batches, or hold values that differ between
    channels), a warning names those layers and what to do: :func:`recalibrate_` for layers that keep population
    statistics, and fine-tuning. :func:`conversion_of` describes the converted layers; for a transformers model the
    description is also stored in its configuration.

    A norm is skipped if the new layer would lose part of its behaviour: a subclass with its own forward or tensors, a
    parametrized norm, or one whose forward was replaced. Known subclasses, such as timm's, are converted. To replace
    such a norm anyway, give its exact name in ``where``. If no norm can be replaced, an error is raised.

    A second warning names the norms that were skipped and the layers that could not be converted as requested (widths
    without a fitting divisor, norms of tokens with a method for channels), and suggests a fix.
    :func:`whitenorm.recipes.plan` shows all of this beforehand. If every norm already is the requested layer, nothing
    changes and a warning says so.

    Args:
        model: any module; if it is a norm itself, it is left unchanged and its replacement is returned.
        layer: ``"iternorm"``, ``"dbn"``, ``"bw-sigma"``, ``"sw"``, ``"sw5"``, ``"gw"``, ``"iw"``, ``"bn"``, ``"gn"``,
            ``"ln"``, or a function from the old norm's width to a new layer. Group sizes are the papers', or the
            largest smaller divisor of the width.
        where: ``"all"``, a recipe's name (see :mod:`whitenorm.recipes`), a list of module names or patterns such as
            ``["bn1", "layer4", "*.bn2"]``, or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the old norms' ε instead of their own default.
        options: arguments of the layer, such as ``steps=7``, ``group_size=32``, ``eps=1e-3``, ``momentum=0.01``,
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
        # A linear layer that stays inside its replacement keeps its own hooks.
        if change.old not in change.new.modules():
            transfer_hooks(change.new, change.old)
    converted = replace_(model, {change.old: change.new for change in changes})
    disable_fast_path_(converted)
    store_record_(converted)
    return converted


def _warn(changes: Plan) -> None:
    """Warn once about layers that are not as requested, and once about a trained model's output."""
    hint = " (recipes.plan lists all)"
    notes = [(change.name, change.note) for change in changes]
    notes += [(name, f"{reason}; it stays") for name, reason in changes.skipped.items()]
    if lines := format_notes(notes, hint):
        anyway = f"\n{REPLACE_ANYWAY}" if changes.skipped else ""
        warnings.warn(f"some layers are not as requested, or behave differently:{lines}{anyway}", stacklevel=3)
    if lines := format_notes([(change.name, change.effect) for change in changes], hint):
        warnings.warn(f"this model is trained, and its output in eval mode changes:{lines}", stacklevel=3)
