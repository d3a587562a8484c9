"""Modules put in the places of others."""

from __future__ import annotations

from torch import nn


def replace_(model: nn.Module, new: dict[nn.Module, nn.Module]) -> nn.Module:
    """Put new modules wherever the old ones stand, and return the model, or what takes its own place.

    Example::

        >>> shared = nn.ReLU()
        >>> replace_(nn.Sequential(shared, shared), {shared: nn.GELU()})
        Sequential(
          (0): GELU(approximate='none')
          (1): GELU(approximate='none')
        )
    """
    # The modules as they are now: a new one may have an old one inside, which stays there.
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in new:
                parent.register_module(name, new[child])
    return new.get(model, model)
