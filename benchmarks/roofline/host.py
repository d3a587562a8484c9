"""Measure the host's time per training step with the Triton kernels, on a machine that needs no GPU.

Everything runs as on a GPU (layer, autograd, planning, allocation, Triton's launcher in Python), except that a function
which does nothing replaces the compiled kernels. Tensors are on the CPU, so that the few operations of torch between
the kernels are computed there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from whitenorm.ops import dispatch

_WARM_UP, _ROUNDS, _STEPS = 20, 5, 100


class HostTime(NamedTuple):
    """Seconds of a training step on the host, and the number of Triton kernels that it launches."""

    seconds: float
    launches: int


def measure_host(layer: nn.Module, shape: tuple[int, ...]) -> HostTime:
    """Return the time of a forward and backward of a layer with the Triton kernels, where these do nothing."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    leaves = [x, *layer.parameters()]

    def step() -> None:
        torch.autograd.grad(layer(x), leaves, grad)

    with replace_compiled_kernels() as calls:
        step()
    with replace_compiled_kernels(record=False):
        return HostTime(_measure_median(step), len(calls))


def measure_without_kernels(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the seconds of a forward and backward of a layer on an input so small that the host is busy."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    leaves = [x, *layer.parameters()]
    return _measure_median(lambda: torch.autograd.grad(layer(x), leaves, grad))


def _measure_median(step: Callable[[], object]) -> float:
    """Return the median of the fastest round: in the others, the machine was busier."""
    for _ in range(_WARM_UP):
        step()
    return min(statistics.median(_time(step) for _ in range(_STEPS)) for _ in range(_ROUNDS))


def _time(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


@contextmanager
def replace_compiled_kernels(record: bool = True) -> Iterator[list[tuple[Any, ...]]]:
    """Use the Triton kernels for CPU tensors without compiling or running them.

    Yields a list of the launches, each with the kernel's name, grid and arguments, if these are to be recorded.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from whitenorm.ops.triton import tiling

    calls: list[tuple[Any, ...]] = []
    kernels: list[Any] = []

    def compile_nothing(kernel: Any, key: Any, _: Any, device: int, *__: Any) -> _Compiled:
        kernels.append(kernel)
        compiled = _Compiled(kernel, calls if record else None)
        kernel.device_caches[device][0][key] = compiled
        return compiled

    before = driver._active
    driver.set_active(_Driver())
    try:
        with (
            mock.patch.dict(tiling._compiled, clear=True),
            mock.patch.object(dispatch, "_takes_native", return_value=False),
            mock.patch.object(dispatch, "_takes_triton", return_value=True),
            mock.patch.object(JITFunction, "_do_compile", compile_nothing),
        ):
            yield calls
    finally:
        driver.set_active(before)
        for kernel in kernels:
            kernel.device_caches.pop(_Driver.DEVICE, None)


class _Driver:
    """The methods of a Triton driver that a launch calls."""

    # No GPU has this index.
    DEVICE = -1

    def get_current_device(self) -> int:
        return self.DEVICE

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)


class _Compiled:
    """The attributes of a compiled kernel that a launch reads."""

    function = packed_metadata = None

    def __init__(self, kernel: Any, calls: list[tuple[Any, ...]] | None) -> None:
        self._kernel, self._calls = kernel, calls

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, grid_0: int, grid_1: int, grid_2: int, *arguments: Any) -> None:
        """Run as Triton does: after the grid come the stream, the function, three kinds of metadata and two hooks."""
        self._record((grid_0, grid_1, grid_2), arguments[6:])

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *arguments: self._record(grid, arguments)

    def _record(self, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        if self._calls is not None:
            self._calls.append((self._kernel.fn.__name__, grid, arguments))
