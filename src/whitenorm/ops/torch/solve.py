"""Second step, and its way back: from moments to the whitening matrix, from its gradient to those of the moments."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.running import update
from whitenorm.ops.torch.pooling import pool, pool_backward
from whitenorm.ops.types import MapGradients, Method, Mixing, Running, Saved, Solved, Statistics, StatisticsGrads


def solve(measured: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solved:
    """Pool the moments, regularise the covariance, solve for the matrix, and take the batch into what is running."""
    mean, cov = pooled(measured, method, mixing)
    whitening, found = method.solver.solve(cov)
    if running is not None and measured.batch is not None:
        update(running, measured.batch, whitening)
    return Solved(whitening, mean, cov, found)


def pooled(measured: Statistics, method: Method, mixing: Mixing | None) -> tuple[Tensor, Tensor]:
    """The mean, and the covariance that is solved for: scale·Σ + ε·I."""
    mean, cov = pool(measured, method.statistics, mixing)
    cov = cov if method.scale == 1 else method.scale * cov
    return mean, torch.add(cov, torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device), alpha=method.eps)


def solve_backward(
    grads: MapGradients,
    kept: Saved,
    measured: Statistics,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> StatisticsGrads:
    """Gradients of γ, β and the logits, and through the statistics to x."""
    whitening = kept.whitening
    grad_whitening, grad_offset, grad_weight, grad_bias = of_map(grads, whitening, weight, bias)
    grad_mean = mean_gradient(whitening, grad_offset)
    grad_cov = method.solver.backward(grad_whitening, *kept.solver)
    grad_cov = grad_cov if method.scale == 1 else method.scale * grad_cov
    pulled = pool_backward(measured, method.statistics, mixing, grad_mean, grad_cov, batch_is_constant)
    return StatisticsGrads(pulled.sample, pulled.batch, grad_weight, grad_bias, pulled.mixing)


def of_map(grads: MapGradients, whitening: Tensor, weight: Tensor | None, bias: Tensor | None) -> MapGradients:
    """From the gradients of y = A(x - μ) + b to those of W and of γ·b, and of γ and β, where these were folded."""
    if grads.weight is not None or grads.bias is not None:
        return grads
    matrix, offset, _, _ = grads
    grad_bias = None if bias is None else (offset[0] if offset.shape[0] == 1 else offset.sum(0)).unsqueeze(-1)
    if weight is None:
        return MapGradients(matrix, offset, None, grad_bias)
    grad_weight = (matrix * whitening).sum((0, -1)).unsqueeze(-1)
    return MapGradients(weight * matrix, weight.squeeze(-1) * offset, grad_weight, grad_bias)


def mean_gradient(whitening: Tensor, grad_offset: Tensor) -> Tensor:
    """-Wᵀ·grad, of the mean that W(x - μ) takes off."""
    rows = grad_offset.reshape(-1, 1, grad_offset.shape[-1])
    # What the product would be added to is left out.
    return torch.baddbmm(rows, rows, whitening.flatten(0, 1), beta=0, alpha=-1).view_as(grad_offset)
