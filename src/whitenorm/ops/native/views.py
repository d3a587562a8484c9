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


def arrange(merges: bool, out: Tensor | None, *inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    """Return inputs ``x[N, G, K, J, P]`` and ``out`` as the kernels take them, and a description of each.

    Inputs that cannot be read in place, in the order of the first one, are copied. If ``out`` cannot be written in
    place, a new tensor is returned instead. With ``merges``, samples are described as one, ``(1, G, K, 1, N·P)``, where
    that is possible: values that share their statistics, as those of vectors, then fill the kernels' tiles.
    """
    tensors = inputs if out is None else (*inputs, out)
    views = _describe_plain(merges, *tensors)
    if views is not None:
        return tensors, views
    x = inputs[0] if _describe_plain(merges, inputs[0]) is not None else _copy_contiguous(inputs[0])
    tensors = (x,)
    for other in inputs[1:]:
        if _describe_plain(merges, x, other) is None:
            other = _copy(other, torch.empty_like(x, dtype=other.dtype))
        tensors = (*tensors, other)
    if out is not None:
        written = out if _describe_plain(merges, x, out) is not None else torch.empty_like(x, dtype=out.dtype)
        tensors = (*tensors, written)
    views = _describe_plain(merges, *tensors)
    assert views is not None
    return tensors, views


def _copy(tensor: Tensor, empty: Tensor) -> Tensor:
    # The result of copy_ would be of the subclass.
    empty.copy_(tensor)
    return empty


def _copy_contiguous(tensor: Tensor) -> Tensor:
    return _copy(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))


def _is_plain(x: Tensor) -> bool:
    """Return whether the values of a tensor are what lies at its address.

    They are not where torch negates or zeroes them on access, as in ``z.conj().imag``, nor in subclasses, such as the
    tensors that an all-reduce returns, which wait for it when they are copied.
    """
    return type(x) is Tensor and not x.is_neg() and not x._is_zerotensor()


def _describe_plain(merges: bool, *tensors: Tensor) -> tuple[object, ...] | None:
    """Return arguments of type ``View*`` for tensors of one shape, or None if one cannot be used in place."""
    for tensor in tensors:
        if tensor.shape != tensors[0].shape:
            raise ValueError(f"expected tensors of one shape (got {[tuple(tensor.shape) for tensor in tensors]})")
        if not _is_plain(tensor):
            return None
    strides = tuple([tensor.stride() for tensor in tensors])
    return _describe(merges, tensors[0].shape, strides, tuple([tensor.dtype for tensor in tensors]))


@functools.lru_cache(maxsize=4096)
def _describe(
    merges: bool, shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], dtypes: tuple[torch.dtype, ...]
) -> tuple[object, ...] | None:
    if len(shape) != 5 or min(shape) < 1 or shape[2] > LARGEST or not set(dtypes) <= set(DTYPES):
        raise ValueError(
            f"expected x[N, G, K, J, P] in float32, bfloat16 or float16 with K of at most {LARGEST} "
            f"(got shape {tuple(shape)} in {', '.join(map(str, dtypes))})"
        )
    if merges and all(_is_mergeable(shape, own) for own in strides):
        n, groups, features, _, positions = shape
        strides = tuple([(0, own[1], own[2], 0, own[4] if positions > 1 else own[0]) for own in strides])
        shape = (1, groups, features, 1, n * positions)
    visits_channels = _visits_channels(shape, strides[0])
    for own in strides:
        if _visits_channels(shape, own) != visits_channels or not _is_usable(shape, own):
            return None
    return tuple([(ctypes.c_int64 * 11)(*shape, *own, DTYPES[d]) for own, d in zip(strides, dtypes, strict=True)])


def _is_mergeable(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    n, _, _, channels, positions = shape
    return channels == 1 and (positions == 1 or n == 1 or strides[0] == positions * strides[4])


def _visits_channels(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the kernels visit the positions of one channel after the other; see Traversal in tile.h."""
    return shape[3] == 1 or (shape[4] > 1 and strides[4] == 1)


def _is_usable(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether values or features are neighbours in memory, in runs that are worth following."""
    if not _visits_channels(shape, strides) and shape[4] > 1 and shape[3] < _SHORTEST:
        return False
    dim = 4 if _visits_channels(shape, strides) else 3
    return shape[dim] == 1 or strides[dim] == 1 or shape[2] == 1 or strides[2] == 1


def matrix_argument(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a contiguous float32 tensor on the CPU of a shape, checked."""
    if tensor.shape != shape or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(
            f"expected a float32 tensor of shape {shape} on the CPU "
            f"(got {tensor.dtype} of {tuple(tensor.shape)} on {tensor.device})"
        )
    if not _is_plain(tensor):
        return _copy_contiguous(tensor)
    return tensor.contiguous()
