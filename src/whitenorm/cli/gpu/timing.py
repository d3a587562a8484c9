"""Training steps on a CUDA device, timed by its own events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import nn

from whitenorm.cli.gpu.use_kernels import use_kernels

_WARM_UP, _ROUNDS, _STEPS = 10, 20, 10
_COPIED = 2**28


def step_seconds(layer: nn.Module, shape: tuple[int, ...], kernels: str, device: torch.device) -> float:
    """Forward and backward of a layer, float32, with these kernels: the median."""
    layer = layer.to(device).train()
    x = torch.randn(shape, device=device, requires_grad=True)
    grad = torch.randn(shape, device=device)
    leaves = [x, *layer.parameters()]
    with use_kernels(kernels):
        return _median(lambda: torch.autograd.grad(layer(x), leaves, grad), device)


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED / _median(lambda: target.copy_(source), device)


def _median(run: Callable[[], object], device: torch.device) -> float:
    """Seconds a run, several in a row, as in training, where the host runs ahead."""
    with torch.cuda.device(device):
        for _ in range(_WARM_UP):
            run()
        return statistics.median(_round(run) for _ in range(_ROUNDS))


def _round(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(_STEPS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / _STEPS
