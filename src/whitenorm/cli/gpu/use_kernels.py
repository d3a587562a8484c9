"""Temporary choice of the kernels."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from whitenorm.ops import dispatch


@contextmanager
def use_kernels(mode: str) -> Iterator[None]:
    """Use the kernels of a mode within the context; see :func:`whitenorm.set_kernels`."""
    before = dispatch._mode
    dispatch.set_kernels(mode)
    try:
        yield
    finally:
        dispatch.set_kernels(before)


def has_triton() -> bool:
    """Return whether the Triton kernels can be imported."""
    try:
        importlib.import_module("whitenorm.ops.triton")
    except ImportError:
        return False
    return True
