"""What Triton kernels are launched, for those who count them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

_counts: list[list[Launch]] = []


class Launch(NamedTuple):
    """A kernel's name, the tensors it was given to read or write, and in how many programs it runs."""

    kernel: str
    tensors: tuple[Tensor, ...]
    programs: int


@contextmanager
def counted() -> Iterator[list[Launch]]:
    """A list that the launches within the context are added to."""
    found: list[Launch] = []
    _counts.append(found)
    try:
        yield found
    finally:
        # By identity: of two lists with the same launches the wrong one would go.
        _counts[:] = [other for other in _counts if other is not found]


def note(kernel: str, arguments: tuple[object, ...], grid: tuple[int, ...]) -> None:
    """Tell those who count of a launch."""
    for found in _counts:
        tensors = tuple(argument for argument in arguments if isinstance(argument, Tensor))
        found.append(Launch(kernel, tensors, math.prod(grid)))
