"""Recording of Triton launches, for tests and benchmarks that count them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

_recorders: list[list[Launch]] = []


class Launch(NamedTuple):
    """A kernel's name, the tensors it reads or writes, its number of programs, and its keyword arguments."""

    kernel: str
    tensors: tuple[Tensor, ...]
    programs: int
    options: dict[str, Any]


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Yield a list that receives every launch within the context."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        # By identity: two recorders with the same launches are equal lists.
        _recorders[:] = [other for other in _recorders if other is not launches]


def record_launch(kernel: str, arguments: tuple[object, ...], grid: tuple[int, ...], options: dict[str, Any]) -> None:
    """Append a launch to every active recorder."""
    for launches in _recorders:
        tensors = tuple(argument for argument in arguments if isinstance(argument, Tensor))
        launches.append(Launch(kernel, tensors, math.prod(grid), options))
