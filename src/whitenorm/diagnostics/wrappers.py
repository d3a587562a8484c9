"""Models inside of what DDP, FSDP, checkpoints and the compiler put around them."""

from __future__ import annotations

from torch import nn

_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def inner_module(model: nn.Module) -> nn.Module:
    """The model itself, without what DDP, FSDP and the compiler put around it."""
    wrapped = _wrapped(model)
    return model if wrapped is None else inner_module(wrapped)


def _wrapped(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    return next((model._modules[name] for name in _INSIDE if name in model._modules), None)


def called_module(model: nn.Module) -> nn.Module:
    """Whose calls are counted: the compiled module, whose inside has no hooks, or else the innermost."""
    if isinstance(model, nn.DataParallel):
        raise ValueError("expected a model whose layers run themselves (got DataParallel, which runs copies); use DDP")
    if model._compiled_call_impl is not None:
        raise ValueError(
            "expected a model whose call is not compiled in place (got one after model.compile(), which skips hooks); "
            "use torch.compile(model)"
        )
    wrapped = _wrapped(model)
    return model if wrapped is None or "_orig_mod" in model._modules else called_module(wrapped)


def plain_name(name: str) -> str:
    """A module's name as in the model without wrappers."""
    return ".".join(part for part in name.split(".") if part not in _INSIDE)
