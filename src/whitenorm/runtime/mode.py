"""The mode PyTorch is in, and whether kernels may read values or write in place in it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

# torch 2.6 does not tell of an export.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
# Parsed once: it takes longer than all else here.
_OLDER_VMAP = torch._C._dispatch_key_parse("VmapMode")


def is_transformed() -> bool:
    """Whether a compiler or TorchScript traces, or a transform such as vmap is at work.

    The older vmap, by which autograd takes batches of gradients at once (``is_grads_batched``, ``vectorize``), counts.
    """
    # No public function tells of transforms. The compiler comes first: it cannot trace the others.
    return (
        torch.compiler.is_compiling()
        or is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._dispatch_tls_is_dispatch_key_included(_OLDER_VMAP)
    )


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are taken, by ``forward_ad.dual_level``, ``torch.func.jvp`` or ``jacfwd``.

    Then differentiable operations run in place of our autograd functions: they carry tangents by themselves.
    """
    # False within an autograd function's forward and backward, where tangents are switched off.
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def is_tracing() -> bool:
    """Whether TorchScript's tracer or ``torch.export`` records: plain operations, and no functions of our own.

    An export keeps no gradient of ours, but would wrap an autograd function's forward in ``no_grad``.
    """
    return bool(_is_exporting()) or torch.jit.is_tracing()  # type: ignore[attr-defined]


def may_read_values(x: torch.Tensor) -> bool:
    """Whether Python may branch on values of a tensor: on a CPU alone, where nothing waits for them.

    Not where a compiler traces, or a transform, a dispatch mode (``make_fx``, fake tensors) or a subclass is at work.
    """
    plain = x.device.type == "cpu" and type(x) is torch.Tensor
    return plain and not is_transformed() and torch._C._len_torch_dispatch_stack() == 0


def may_write_in_place() -> bool:
    """Not while autograd records or tangents are carried, nor under a transform, as vmap's operands are batched."""
    return not (torch.is_grad_enabled() or is_transformed() or is_forward_mode())
