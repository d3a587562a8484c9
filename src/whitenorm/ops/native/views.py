"""Checked views of tensors for the C++ kernels: shape, strides and dtype of ``x[N, G, K, J, P]``."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Shorter runs of channels per position take longer to read than to copy.
_SHORTEST = 16
# The kernels' workspace has this many features at most.
LARGEST = 1024


def merge_samples(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return ``x[N, G, K, 1, P]`` as ``(1, G, K, 1, N·P)`` if all tensors can be viewed so, else as they are.

    Values that share their statistics fill the kernels' tiles, as those of vectors and of channels-last images.
    """
    for x in tensors:
        n, _, _, channels, positions = x.shape
        if channels != 1 or (positions > 1 and n > 1 and x.stride(0) != positions * x.stride(4)):
            return tensors
    return tuple([_merge(x) for x in tensors])


def _merge(x: Tensor) -> Tensor:
    n, groups, features, _, positions = x.shape
    stride = x.stride(4) if positions > 1 else x.stride(0)
    shape, strides = (1, groups, features, 1, n * positions), (0, x.stride(1), x.stride(2), 0, stride)
    return x.as_strided(shape, strides)


def as_readable(x: Tensor) -> Tensor:
    """Return x, copied if the kernels cannot read its strides: values or features must be neighbours in memory."""
    if not _is_plain(x):
        return torch.empty(x.shape, dtype=x.dtype, device="cpu").copy_(x)
    return x if _is_readable(x) else x.contiguous()


def as_readable_like(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad, copied to the strides of x if they are not visited in the same order."""
    same_order = grad.stride() == x.stride() or (_is_readable(grad) and _visits_channels(grad) == _visits_channels(x))
    if same_order and _is_plain(grad):
        return grad
    return torch.empty_like(x, dtype=grad.dtype).copy_(grad)


def _is_plain(x: Tensor) -> bool:
    """Return whether the values of a tensor are what lies at its address.

    They are not where torch negates or zeroes them on access, as in ``z.conj().imag``, nor in subclasses, such as the
    tensors that an all-reduce returns, which wait for it when they are copied.
    """
    return type(x) is Tensor and not x.is_neg() and not x._is_zerotensor()


def _visits_channels(x: Tensor) -> bool:
    """Return whether the kernels visit the positions of one channel after the other; see Traversal in tile.h."""
    return x.shape[3] == 1 or (x.shape[4] > 1 and x.stride(4) == 1)


def _is_readable(x: Tensor) -> bool:
    if not _visits_channels(x) and x.shape[4] > 1 and x.shape[3] < _SHORTEST:
        return False
    dim = 4 if _visits_channels(x) else 3
    return x.shape[dim] == 1 or x.stride(dim) == 1 or x.shape[2] == 1 or x.stride(2) == 1


def describe(x: Tensor) -> object:
    """Return what the kernels know of a tensor beside its address, for an argument of type ``View*``."""
    return _describe(x.shape, x.stride(), x.dtype)


@functools.lru_cache(maxsize=4096)
def _describe(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> object:
    if len(shape) != 5 or min(shape) < 1 or shape[2] > LARGEST or dtype not in DTYPES:
        raise ValueError(
            f"expected x[N, G, K, J, P] in float32, bfloat16 or float16 with K of at most {LARGEST} "
            f"(got shape {tuple(shape)} in {dtype})"
        )
    return (ctypes.c_int64 * 11)(*shape, *strides, DTYPES[dtype])


def matrix_argument(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a contiguous float32 tensor on the CPU of a shape, checked."""
    if tensor.shape != shape or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(
            f"expected a float32 tensor of shape {shape} on the CPU "
            f"(got {tensor.dtype} of {tuple(tensor.shape)} on {tensor.device})"
        )
    if not _is_plain(tensor):
        return torch.empty(shape, dtype=torch.float32, device="cpu").copy_(tensor)
    return tensor.contiguous()
