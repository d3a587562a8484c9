"""The steps on K×K matrices: from moments to the whitening matrix, and from its gradient to those of the moments."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from whitenorm._runtime import is_forward_mode
from whitenorm.ops.torch import mixing as mixed
from whitenorm.ops.types import (
    BATCH_STATISTICS,
    AffineGrad,
    MapGradients,
    Method,
    Mixing,
    Moments,
    Running,
    Solution,
    Statistics,
    StatisticsGrads,
)


def solve(statistics: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solution:
    mean, cov = pool(statistics, method, mixing)
    whitening, residuals = method.solver.solve(cov)
    if running is not None and statistics.batch is not None:
        update_running(running, statistics.batch, whitening)
    return Solution(whitening, mean, cov, residuals)


def update_running(running: Running, batch: Moments, whitening: Tensor) -> None:
    """Update running statistics in place with the moments of a batch and the matrix solved from them.

    A batch of fewer than two values has no covariance and changes nothing. Only a mask or an all-reduce over ranks can
    leave so few; the number of values is then a tensor, so that the host waits for nothing.
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


def pool(statistics: Statistics, method: Method, mixing: Mixing | None) -> tuple[Tensor, Tensor]:
    """Return the pooled mean, and the covariance that is solved for: scale·Σ + ε·I."""
    if mixing is not None:
        mean, cov = mixed.mix(statistics, method.statistics, mixing)
    else:
        moments = statistics.sample if statistics.batch is None else statistics.batch
        assert moments is not None
        mean, cov, _ = moments
    cov = cov if method.scale == 1 else method.scale * cov
    return mean, torch.add(cov, torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device), alpha=method.eps)


def solve_backward(
    grads: MapGradients,
    solution: Solution,
    statistics: Statistics,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> StatisticsGrads:
    whitening, _, cov, residuals = solution
    grad_whitening, grad_offset, grad_weight, grad_bias = unfold_parameters(grads, whitening, weight, bias)
    grad_mean = differentiate_offset(whitening, grad_offset)
    grad_cov = method.solver.backward(grad_whitening, cov, whitening, residuals)
    grad_cov = grad_cov if method.scale == 1 else method.scale * grad_cov
    if mixing is not None:
        sample, batch, grad_mixing = mixed.mix_backward(
            statistics, method.statistics, mixing, grad_mean, grad_cov, batch_is_constant
        )
        return StatisticsGrads(sample, batch, grad_weight, grad_bias, grad_mixing)
    moments = statistics.sample if statistics.batch is None else statistics.batch
    assert moments is not None
    through = AffineGrad(grad_cov, grad_mean, moments.mean, moments.num_values)
    if method.statistics[0] in BATCH_STATISTICS:
        return StatisticsGrads(None, through, grad_weight, grad_bias, None)
    return StatisticsGrads(through, None, grad_weight, grad_bias, None)


def combine_affine_grads(sample: AffineGrad | None, batch: AffineGrad | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix, offset ``(B, G, K, 1)`` and mean of one map ``matrix @ (x - mean) + offset``.

    Where both are given, the mean is that of each sample, because x - mean is smallest there, however far away the
    batch's mean is.
    """
    first = batch if sample is None else sample
    assert first is not None
    matrix, offset = first.matrix * (2 / first.num_values), first.offset.unsqueeze(-1) / first.num_values
    if sample is None or batch is None:
        return matrix, offset, first.mean
    batch_matrix = batch.matrix * (2 / batch.num_values)
    # Not batch_matrix @ vectors, which would copy the matrices for each sample.
    moved = ((sample.mean - batch.mean).transpose(0, 1) @ batch_matrix[0].mT).transpose(0, 1)
    return matrix + batch_matrix, offset + (batch.offset / batch.num_values + moved).unsqueeze(-1), sample.mean


def unfold_parameters(
    grads: MapGradients, whitening: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """Return the gradients of W, of its offset, of γ and of β, from those of the map that γ and β were folded into."""
    matrix, offset, grad_weight, grad_bias = grads
    if grad_weight is not None or grad_bias is not None:
        return grads
    if bias is not None:
        grad_bias = (offset[0] if offset.shape[0] == 1 else offset.sum(0)).unsqueeze(-1)
    if weight is None:
        return MapGradients(matrix, offset, None, grad_bias)
    grad_weight = (matrix * whitening).sum((0, -1)).unsqueeze(-1)
    return MapGradients(weight * matrix, weight.squeeze(-1) * offset, grad_weight, grad_bias)


def differentiate_offset(whitening: Tensor, grad_offset: Tensor) -> Tensor:
    """Return the gradient of the mean, -Wᵀ·grad, from that of the offset W(x - mean)."""
    rows = grad_offset.reshape(-1, 1, grad_offset.shape[-1])
    # With beta=0, the first argument is ignored.
    return torch.baddbmm(rows, rows, whitening.flatten(0, 1), beta=0, alpha=-1).view_as(grad_offset)
