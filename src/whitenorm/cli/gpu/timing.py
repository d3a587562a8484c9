"""Timing of training steps on a CUDA device with its events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import nn

from whitenorm.cli.gpu.use_kernels import use_kernels

_WARM_UP, _ROUNDS, _STEPS = 10, 20, 10
_COPY_BYTES = 2**28


def measure_step(layer: nn.Module, shape: tuple[int, ...], kernels: str, device: torch.device) -> float:
    """Return the median seconds of a float32 forward and backward of a layer."""
    layer = layer.to(device).train()
    x = torch.randn(shape, device=device, requires_grad=True)
    grad = torch.randn(shape, device=device)
    leaves = [x, *layer.parameters()]
    with use_kernels(kernels):
        return _measure_median(lambda: torch.autograd.grad(layer(x), leaves, grad), device)


def measure_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _measure_median(lambda: target.copy_(source), device)


def _measure_median(run: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a run, of several in a row, because the host runs ahead as in training."""
    with torch.cuda.device(device):
        for _ in range(_WARM_UP):
            run()
        return statistics.median(_time_round(run) for _ in range(_ROUNDS))


def _time_round(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(_STEPS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / _STEPS
