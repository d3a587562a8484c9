"""Models inside the wrappers of DDP, FSDP, activation checkpointing and the compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_WRAPPER_ATTRIBUTES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside all wrappers."""
    inner = _inner_module(model)
    return model if inner is None else unwrap(inner)


def _inner_module(model: nn.Module) -> nn.Module | None:
    """Return the module directly inside a wrapper, or None if the model is not wrapped."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    return next((model._modules[name] for name in _WRAPPER_ATTRIBUTES if name in model._modules), None)


def find_called_module(model: nn.Module) -> nn.Module:
    """Return the module whose forward hooks run: a compiled module, because those inside it are skipped, or the model.

    Raise if there is none.
    """
    if isinstance(model, nn.DataParallel):
        raise ValueError("expected a model whose layers run themselves (got DataParallel, which runs copies); use DDP")
    if model._compiled_call_impl is not None:
        raise ValueError(
            "expected a model whose call is not compiled in place (got one after model.compile(), which skips hooks); "
            "use torch.compile(model)"
        )
    inner = _inner_module(model)
    return model if inner is None or "_orig_mod" in model._modules else find_called_module(inner)


def unwrap_name(name: str) -> str:
    """Return a module's name as it is in the model without wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_ATTRIBUTES)


# The number of active without_compiler contexts, and the stance that they share.
_num_contexts = 0
_eager = ExitStack()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Run compiled models eagerly, because compiled code skips hooks.

    Contexts of several monitors may end in any order: the last one restores the compiler.
    """
    global _num_contexts
    # If the compiler was never imported, which takes seconds, nothing is compiled.
    if _num_contexts == 0 and "torch._dynamo" in sys.modules:
        _eager.enter_context(torch.compiler.set_stance("force_eager"))
    _num_contexts += 1
    try:
        yield
    finally:
        _num_contexts -= 1
        if _num_contexts == 0:
            _eager.close()
