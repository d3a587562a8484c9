"""Running statistics, updated in place without a host sync."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from whitenorm._runtime import is_forward_mode
from whitenorm.ops.types import Moments, Running


def update_running(running: Running, batch: Moments, whitening: Tensor) -> None:
    """Update running statistics with the moments of a batch and the matrix solved from them.

    A batch of fewer than two values has no covariance and changes nothing. Only a mask or an all-reduce over ranks can
    leave so few; the number of values is then a tensor.
    """
    num_values = batch.num_values if isinstance(batch.num_values, Tensor) else None
    matrix = whitening if running.kind == "whitening" else batch.cov
    without_tangents = forward_ad._set_fwd_grad_enabled(False) if is_forward_mode() else nullcontext()
    with torch.no_grad(), without_tangents:
        for buffer, new in ((running.mean, batch.mean), (running.matrix, matrix)):
            if buffer is None:
                continue
            weight = running.momentum
            if isinstance(weight, Tensor):
                weight = weight.to(buffer.dtype)
            if num_values is not None:
                weight = weight * (num_values > 1).to(buffer.dtype)
            buffer.lerp_(new.reshape(buffer.shape).to(buffer.dtype), weight)
        if running.counter is not None:
            running.counter.add_(1 if num_values is None else num_values > 1)
