"""Replace modules of a model in place."""

from __future__ import annotations

from torch import nn


def replace_(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Put new modules in the places of old ones, and return the model, or its own replacement.

    A module that is registered in several places is replaced in all of them.

    Args:
        model: any module.
        replacements: the new module for each old one.

    Example::

        >>> shared = nn.ReLU()
        >>> replace_(nn.Sequential(shared, shared), {shared: nn.GELU()})
        Sequential(
          (0): GELU(approximate='none')
          (1): GELU(approximate='none')
        )
    """
    # List the modules first: a new module may contain the old one, which must stay there.
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                parent.register_module(name, replacements[child])
    return replacements.get(model, model)


def disable_fast_path_(model: nn.Module) -> None:
    """Disable the inference fast path of ``nn.TransformerEncoder`` layers whose norms are not LayerNorm.

    The fast path does not call the norms: it computes LayerNorm from their weights, on nested tensors.
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
