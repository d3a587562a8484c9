"""Whether the kernels may write into tensors they have made, which saves passes over memory."""

from __future__ import annotations

import torch


def is_transformed() -> bool:
    """Whether a compiler or TorchScript traces, or a functional transform such as vmap is at work."""
    # No public function tells of transforms.
    return torch.compiler.is_compiling() or is_tracing() or torch._C._are_functorch_transforms_active()


def is_tracing() -> bool:
    """Whether TorchScript's tracer records, which knows plain operations, and no functions of our own."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def may_write_in_place() -> bool:
    """Not while autograd records, nor under a transform: vmap would need every written tensor to be batched."""
    return not (torch.is_grad_enabled() or is_transformed())
