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


def leave_fast_path(model: nn.Module) -> None:
    """Turn off the fast path of ``nn.TransformerEncoder`` where its layers have other norms than LayerNorm.

    At inference it computes LayerNorm itself, with the norms' weights, on nested tensors that nothing else takes.
    """
    for module in model.modules():
        if _has_other_norms(module):
            module.activation_relu_or_gelu = 0  # type: ignore[assignment]
        elif isinstance(module, nn.TransformerEncoder) and any(map(_has_other_norms, module.layers)):
            module.use_nested_tensor = False


def _has_other_norms(module: nn.Module) -> bool:
    if not isinstance(module, nn.TransformerEncoderLayer):
        return False
    return not all(isinstance(norm, nn.LayerNorm) for norm in (module.norm1, module.norm2))
