"""Kernels for a while."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from whitenorm.ops import dispatch


@contextmanager
def chosen(mode: str) -> Iterator[None]:
    """Within it, the kernels of this mode run; see :func:`whitenorm.set_kernels`."""
    before = dispatch._mode
    dispatch.set_kernels(mode)
    try:
        yield
    finally:
        dispatch.set_kernels(before)


def has_triton() -> bool:
    """Whether there are kernels of Triton's to choose."""
    try:
        importlib.import_module("whitenorm.ops.triton")
    except ImportError:
        return False
    return True
