"""Checkpoints of the papers' own code: other names and shapes for the same tensors.

| in the checkpoint                              | here                                                   |
| ---------------------------------------------- | ------------------------------------------------------ |
| ``weight``, ``bias`` of shape ``(1, C, 1, 1)`` | ``weight``, ``bias`` of shape ``(C,)``                 |
| ``running_mean`` of shape ``(G, K, 1)``        | ``running_mean`` of shape ``(C,)``                     |
| ``running_wm`` (IterNorm)                      | ``running_whitening``                                  |
| ``iterNorm_Groups.0.running_mean``, ``…wm``, … | ``running_mean``, ``running_whitening``, all in one    |
| ``sw_mean_weight``, ``sw_var_weight`` (SW)     | ``mean_logits``, ``cov_logits``                        |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.layers.base import ChannelWhitening

_NAMES = {"running_wm": "running_whitening", "sw_mean_weight": "mean_logits", "sw_var_weight": "cov_logits"}
_GROUPS = "iterNorm_Groups"


def load_published(model: nn.Module, checkpoint: Mapping[str, Any], strict: bool = True) -> Any:
    """Load a checkpoint of the authors' IterNorm, SW or GW code into a model with whitenorm's layers.

    The model must have the modules' names of the checkpoint, as torchvision's ResNets have those of the papers' code,
    and the layers at the same places, of the same group sizes. Everything that is not a whitening layer's is passed on
    as it is; ``state_dict`` around and ``module.`` before the names are taken off.

    Args:
        model: where to load to.
        checkpoint: what ``torch.load`` gives.
        strict: raise if names are missing or left over, as ``load_state_dict`` does.

    Returns:
        What ``load_state_dict`` returns: missing and unexpected names.

    Example::

        >>> model = nn.Sequential(whitenorm.IterNorm(4, 2))
        >>> published = {"0.weight": torch.ones(1, 4, 1, 1), "0.bias": torch.zeros(1, 4, 1, 1)}
        >>> published |= {"0.running_mean": torch.ones(2, 2, 1), "0.running_wm": torch.eye(2).expand(2, 2, 2)}
        >>> load_published(model, published)
        <All keys matched successfully>
        >>> model[0].running_mean
        tensor([1., 1., 1., 1.])
    """
    state = {name.removeprefix("module."): value for name, value in checkpoint.get("state_dict", checkpoint).items()}
    for path, layer in model.named_modules():
        if isinstance(layer, ChannelWhitening):
            prefix = f"{path}." if path else ""
            own = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
            own = _translated({name.removeprefix(prefix): value for name, value in own.items()}, layer)
            state.update({prefix + name: value for name, value in own.items()})
    return model.load_state_dict(state, strict=strict)


def _translated(published: dict[str, Tensor], layer: ChannelWhitening) -> dict[str, Tensor]:
    expected = layer.state_dict()
    renamed = {_NAMES.get(name, name): value for name, value in _without_groups(published).items()}
    if "num_batches_tracked" in expected:
        renamed.setdefault("num_batches_tracked", torch.zeros_like(expected["num_batches_tracked"]))
    for name, value in renamed.items():
        # A wrong number of elements is left for load_state_dict to complain about.
        if name in expected and value.numel() == expected[name].numel():
            renamed[name] = value.reshape(expected[name].shape)
    return renamed


def _without_groups(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for all groups, where the checkpoint has a module for each."""
    groups = {int(name.split(".")[1]) for name in published if name.startswith(f"{_GROUPS}.")}
    if not groups:
        return published
    joined = {name: value for name, value in published.items() if not name.startswith(f"{_GROUPS}.")}
    for name in ("running_mean", "running_wm"):
        joined[name] = torch.stack([published[f"{_GROUPS}.{group}.{name}"] for group in sorted(groups)])
    return joined
