"""In which dtype statistics are computed: float32 at least, also for half inputs and under autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything narrower.

    Example::

        >>> compute_dtype(torch.bfloat16), compute_dtype(torch.float64)
        (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64: on its own device, or on the CPU if the device has no float64.

    Example::

        >>> to_float64(torch.ones(2, dtype=torch.float16))
        tensor([1., 1.], dtype=torch.float64)
    """
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast leaves the products on this tensor's device alone."""
    device = tensor.device.type
    # What is compiled has autocast, and older compilers cannot trace the question.
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise unless the tensor holds real floating-point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"expected {name} to be floating-point (got {tensor.dtype}); convert it first: {name}.float()")
