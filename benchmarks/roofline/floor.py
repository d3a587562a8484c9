"""Lower bound of a layer's training step on this CPU: the work that is really needed, at measured rates.

Assumptions, all of them here:

- Every pass over the input reads and writes each element once, at the bandwidth of a copy of a tensor of this size.
- A pass takes as long as its memory traffic or its products, whichever is longer. Products run at the rate of the best
  square matrix product, also those of small matrices.
- With its own statistics, a sample stays in the cache between the passes over it: forward reads x and writes y, and
  backward reads grad and x and writes dx. With statistics of the batch, forward reads x twice, and backward reads grad
  and x twice.
- The covariance is symmetric, so that half of its product is needed. The others are full products: y, the gradient of
  the matrix, and the two of dx.
- Five steps of Newton's iteration need 12 products of symmetric matrices, half of each, and backward 16 full ones if
  the iterates are saved. An eigendecomposition needs 9K³ FLOPs, and ZCA's matrix and backward five products.
- Calls, allocations, parameters and running statistics are free.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from benchmarks.roofline.work import Operation
from whitenorm_lab.timing import measure_sgemm_rate, time_interleaved

_NEWTON_FORWARD, _NEWTON_BACKWARD = 12, 16
_EIGENDECOMPOSITION, _ZCA_PRODUCTS = 9, 5
# Bytes of the smallest tensor whose copy is timed; for smaller ones, the call would be timed.
_LEAST = 1 << 20


class Rates(NamedTuple):
    """FLOPs per second of products, and bytes per second of copies."""

    flops: float
    bandwidth: float


def measure_rates(shape: tuple[int, ...]) -> Rates:
    """Measure the rates for an input of this shape."""
    source = torch.randn(max(math.prod(shape), _LEAST // 4))
    target = torch.empty_like(source)
    seconds = min(time_interleaved({"copy": lambda: target.copy_(source)}, 30, 1.0)["copy"])
    return Rates(_measure_products(), 2 * source.nbytes / seconds)


@functools.cache
def _measure_products() -> float:
    return measure_sgemm_rate()


def list_needed_operations(
    shape: tuple[int, ...], size: int, matrices: int, solver: str, is_per_sample: bool
) -> list[Operation]:
    """Return the passes of a training step over an input and its solves.

    Args:
        shape: of the float32 input.
        size: number of features whitened together, K.
        matrices: number of K×K matrices to solve for.
        solver: ``newton`` or ``zca``.
        is_per_sample: whether all statistics are those of single samples.

    Example::

        >>> operations = list_needed_operations((8, 16, 4, 4), 16, 1, "newton", is_per_sample=False)
        >>> sum(operation.bytes for operation in operations) == 8 * 4 * 8 * 16 * 4 * 4
        True
    """
    values = math.prod(shape)
    product, cube = 2 * values * size, matrices * size**3
    if is_per_sample:
        passes = [
            Operation("forward", 2 * 4 * values, 3 * product // 2),
            Operation("backward", 3 * 4 * values, 3 * product),
        ]
    else:
        passes = [
            Operation("moments", 4 * values, product // 2),
            Operation("apply", 2 * 4 * values, product),
            Operation("map_gradients", 2 * 4 * values, product),
            Operation("input_gradient", 3 * 4 * values, 2 * product),
        ]
    if solver == "newton":
        flops = (_NEWTON_FORWARD + 2 * _NEWTON_BACKWARD) * cube
    else:
        flops = (_EIGENDECOMPOSITION + 2 * _ZCA_PRODUCTS) * cube
    return [*passes, Operation("solve", 0, flops)]


def floor_seconds(operations: Iterable[Operation], rates: Rates) -> float:
    """Return the sum of the operations' seconds, each of its memory traffic or its products, whichever is longer.

    Example::

        >>> floor_seconds([Operation("pass", bytes=2000, flops=100)], Rates(flops=100, bandwidth=1000))
        2.0
    """
    return sum(max(operation.bytes / rates.bandwidth, operation.flops / rates.flops) for operation in operations)
