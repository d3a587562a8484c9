"""Whitening in place of the norms of any model, in one line."""

from __future__ import annotations

from torch import nn

from whitenorm.models.layers import LayerLike
from whitenorm.models.recipes import Where, plan
from whitenorm.models.replace import replace_


def convert_(model: nn.Module, layer: LayerLike, where: Where = "all", *, keep_eps: bool = False) -> nn.Module:
    """Replace norms by whitening layers, in place, and return the model.

    BatchNorm of any dimension, SyncBatchNorm, FrozenBatchNorm, timm's BatchNormAct (with its activation), GroupNorm and
    LayerNorm (by :class:`LayerWhitening`) are replaced. Weight, bias, device, dtype, training mode and requires_grad
    carry over. From a trained BatchNorm the population carries over too, so that with ``"iternorm"``, ``"dbn"`` and
    ``"bw-sigma"`` the model's output in eval mode is what it was; the other layers use statistics of the sample. In
    place of a GroupNorm, a batch method has no population yet: train, or :func:`recalibrate_`, before eval mode.
    Momentum, hooks and a frozen norm's being frozen in training do not carry over; InstanceNorm and RMSNorm stay.

    Args:
        model: any module; one that is a norm itself is not changed, but returned as its replacement.
        layer: ``"iternorm"``, ``"dbn"``, ``"bw-sigma"``, ``"sw"``, ``"sw5"``, ``"gw"``, ``"iw"``, or a function from
            the old norm's width to a new layer. Group sizes are the papers', or the largest divisor of the width below.
        where: ``"all"``, a recipe's name (see :mod:`whitenorm.recipes`), or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the ε of the old norms instead of their own.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> convert_(model, "iternorm")[1].group_size
        8
    """
    model = replace_(model, {change.old: change.new for change in plan(model, layer, where, keep_eps)})
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            norms = (module.norm1, module.norm2)
            if not all(isinstance(norm, nn.LayerNorm) for norm in norms):
                # Its fast path at inference takes the norms' weights and computes LayerNorm itself.
                module.activation_relu_or_gelu = 0
    return model
