"""Interleaved timing of several functions in one process, with medians and ratios of the times."""

from __future__ import annotations

import ctypes
import functools
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch


class Timing(NamedTuple):
    """Median and interquartile range, in milliseconds."""

    ms: float
    iqr: float


def time_interleaved(
    runs: Mapping[str, Callable[[], object]], rounds: int, budget: float = 60.0
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round, after one warm-up round.

    Every round calls all functions in a new random order, because each finds the caches as the one before left them.
    Stops after ``budget`` seconds, but not before three rounds.
    """
    keep_freed_memory()
    times: dict[str, list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    order, shuffle = list(runs), random.Random(0).shuffle
    for i in range(rounds + 1):
        shuffle(order)
        for name in order:
            before = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - before)
        if i >= 3 and time.perf_counter() - start > budget:
            break
    return {name: values[1:] for name, values in times.items()}


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc's allocator keep freed memory in this process; do nothing with other allocators.

    By default, large blocks are returned to the system, and every new one must be cleared page by page. This is rare in
    a training loop, which holds much more memory than one layer; in a loop over one layer, it depends on what ran
    before.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_max, 0)


def summarise(values: list[float]) -> Timing:
    """Return the median and the interquartile range of times in seconds.

    Example::

        >>> summarise([0.001, 0.002, 0.003])
        Timing(ms=2.0, iqr=2.0)
    """
    low, middle, high = statistics.quantiles(values, n=4)
    return Timing(1e3 * middle, 1e3 * (high - low))


def median_ratio(values: list[float], base: list[float]) -> float:
    """Return the median over rounds of the ratio of two times in the same round.

    Example::

        >>> median_ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
        2.0
    """
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def measure_sgemm_rate(rounds: int = 10) -> float:
    """Return the highest rate of this machine for square single-precision matrix products, in flops per second."""
    best = 0.0
    for size in (512, 1024, 2048):
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = torch.empty(size, size)
        for _ in range(rounds):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
