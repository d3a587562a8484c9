"""Running statistics, written in place without a host sync."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from whitenorm.kernels.types import Moments, Running
from whitenorm.runtime.mode import is_forward_mode


def update(running: Running, batch: Moments, whitening: Tensor) -> None:
    """Take in a batch: its moments, and the matrix they led to. A batch of no values, over ranks, changes nothing."""
    number = batch.number if isinstance(batch.number, Tensor) else None
    matrix = whitening if running.kind == "whitening" else batch.cov
    without_tangents = forward_ad._set_fwd_grad_enabled(False) if is_forward_mode() else nullcontext()
    with torch.no_grad(), without_tangents:
        _lerp(running.mean, batch.mean, running.momentum, number)
        _lerp(running.matrix, matrix, running.momentum, number)
        if running.counter is not None:
            running.counter.add_(1 if number is None else number > 0)


def _lerp(running: Tensor | None, new: Tensor, momentum: float | Tensor, number: Tensor | None) -> None:
    """running ← (1 - momentum)·running + momentum·new; of no values, nothing."""
    if running is None:
        return
    new = new.reshape(running.shape).to(running.dtype)
    weight = momentum.to(running.dtype) if isinstance(momentum, Tensor) else momentum
    running.lerp_(new, weight if number is None else weight * (number > 0).to(running.dtype))
