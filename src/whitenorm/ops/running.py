"""Running statistics, written in place without a host sync."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from whitenorm._runtime import is_forward_mode
from whitenorm.ops.types import Moments, Running


def update(running: Running, batch: Moments, whitening: Tensor) -> None:
    """Update the running statistics with the moments of a batch and the matrix solved from them.

    A batch of fewer than two values, which have no covariance, changes nothing. Only a mask, or an all-reduce over
    ranks, can leave so few, and then the number of values is a tensor.
    """
    number = batch.num_values if isinstance(batch.num_values, Tensor) else None
    matrix = whitening if running.kind == "whitening" else batch.cov
    without_tangents = forward_ad._set_fwd_grad_enabled(False) if is_forward_mode() else nullcontext()
    with torch.no_grad(), without_tangents:
        _lerp(running.mean, batch.mean, running.momentum, number)
        _lerp(running.matrix, matrix, running.momentum, number)
        if running.counter is not None:
            running.counter.add_(1 if number is None else number > 1)


def _lerp(running: Tensor | None, new: Tensor, momentum: float | Tensor, number: Tensor | None) -> None:
    """running ← (1 - momentum)·running + momentum·new, unless ``new`` is of fewer than two values."""
    if running is None:
        return
    new = new.reshape(running.shape).to(running.dtype)
    weight = momentum.to(running.dtype) if isinstance(momentum, Tensor) else momentum
    running.lerp_(new, weight if number is None else weight * (number > 1).to(running.dtype))
