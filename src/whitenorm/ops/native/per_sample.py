"""Whitening per sample in one call forward and one backward, for methods whose samples have their own statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.native.steps import LARGEST_SOLVED, MOST_STEPS, call, get_address, is_writable, parameter_argument
from whitenorm.ops.native.views import as_readable, as_readable_like, describe, matrix_argument


def is_supported(x: Tensor, steps: int) -> bool:
    return x.shape[2] <= LARGEST_SOLVED and steps <= MOST_STEPS


def whiten_samples(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    out: Tensor,
) -> tuple[Tensor, ...]:
    """Compute γ·W(x - mean) + β of each sample's own mean and covariance, with W by ``steps`` of Newton's iteration.

    Args:
        x: ``(N, G, K, J, P)``.
        weight, bias: γ and β, ``(G, K, J)``.
        eps: added to the diagonal of the covariance.
        steps: number of iterations.
        out: the result, of x's shape.

    Returns:
        Tensors for :func:`whiten_samples_backward`: means, covariances and whitening matrices.
    """
    x = as_readable(x)
    written = out if is_writable(out, x) else torch.empty_like(x, dtype=out.dtype)
    n, groups, features, channels, _ = x.shape
    mean = x.new_empty((n, groups, features), dtype=torch.float32)
    matrices = x.new_empty((2, n, groups, features, features), dtype=torch.float32)
    cov, whitening = matrices
    weight, bias = (parameter_argument(tensor, (groups, features, channels)) for tensor in (weight, bias))
    call(
        "wn_whiten_samples",
        x.data_ptr(),
        describe(x),
        written.data_ptr(),
        describe(written),
        get_address(weight),
        get_address(bias),
        eps,
        steps,
        mean.data_ptr(),
        cov.data_ptr(),
        whitening.data_ptr(),
        torch.get_num_threads(),
    )
    if written is not out:
        out.copy_(written)
    return mean, matrices


def whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    saved: tuple[Tensor, ...],
    out: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of x to ``out``, and return those of γ and β ``(G, K, J)``."""
    x = as_readable(x)
    grad = as_readable_like(grad, x)
    written = out if is_writable(out, x) else torch.empty_like(x, dtype=out.dtype)
    n, groups, features, channels, _ = x.shape
    mean = matrix_argument(saved[0], (n, groups, features))
    cov, whitening = matrix_argument(saved[1], (2, n, groups, features, features))
    scale = parameter_argument(weight, (groups, features, channels))
    grad_weight, grad_bias = x.new_empty((2, groups, features, channels), dtype=torch.float32)
    call(
        "wn_whiten_samples_backward",
        grad.data_ptr(),
        describe(grad),
        x.data_ptr(),
        describe(x),
        written.data_ptr(),
        describe(written),
        get_address(scale),
        mean.data_ptr(),
        cov.data_ptr(),
        whitening.data_ptr(),
        steps,
        grad_weight.data_ptr(),
        grad_bias.data_ptr(),
        torch.get_num_threads(),
    )
    if written is not out:
        out.copy_(written)
    return None if weight is None else grad_weight, None if bias is None else grad_bias
