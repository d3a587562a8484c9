"""All steps in one call forward and one backward, for methods with one statistic and Newton's iteration.

``whiten_samples`` is for samples with statistics of their own, ``whiten_batch`` for samples that share theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.native.steps import LARGEST_SOLVED, MOST_STEPS, call, get_address, parameter_argument
from whitenorm.ops.native.views import arrange, matrix_argument


def is_supported(shape: tuple[int, ...], steps: int) -> bool:
    """Return whether the kernels are for ``x[N, G, K, J, P]`` of a shape and this number of steps."""
    return shape[2] <= LARGEST_SOLVED and steps <= MOST_STEPS


def whiten_samples(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int, out: Tensor
) -> tuple[Tensor, ...]:
    """Compute γ·W(x - mean) + β of each sample's own mean and covariance, with W by ``steps`` of Newton's iteration.

    Args:
        x: ``(N, G, K, J, P)``.
        weight, bias: γ and β, ``(G, K, J)``.
        eps: added to the diagonal of the covariance.
        steps: number of iterations.
        out: the result, of x's shape.

    Returns:
        The means, covariances and whitening matrices, for :func:`whiten_samples_backward`.
    """
    return _whiten("wn_whiten_samples", x.shape[0], x, weight, bias, eps, steps, out)


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
    return _whiten_backward("wn_whiten_samples_backward", x.shape[0], grad, x, weight, bias, eps, steps, saved, out)


def whiten_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int, out: Tensor
) -> tuple[Tensor, ...]:
    """Compute the same with the mean and covariance of all samples, for features of one channel (J = 1)."""
    return _whiten("wn_whiten_batch", 1, x, weight, bias, eps, steps, out)


def whiten_batch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    saved: tuple[Tensor, ...],
    out: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of x to ``out``, and return those of γ and β ``(G, K, 1)``."""
    return _whiten_backward("wn_whiten_batch_backward", 1, grad, x, weight, bias, eps, steps, saved, out)


def _whiten(
    function: str,
    entries: int,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    out: Tensor,
) -> tuple[Tensor, ...]:
    _, groups, features, channels, _ = x.shape
    (x, written), views = arrange(entries == 1, out, x)
    mean = x.new_empty((entries, groups, features), dtype=torch.float32)
    cov = x.new_empty((entries, groups, features, features), dtype=torch.float32)
    whitening = torch.empty_like(cov)
    weight = parameter_argument(weight, (groups, features, channels))
    bias = parameter_argument(bias, (groups, features, channels))
    call(
        function,
        x.data_ptr(),
        views[0],
        written.data_ptr(),
        views[1],
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
    return mean, cov, whitening


def _whiten_backward(
    function: str,
    entries: int,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    saved: tuple[Tensor, ...],
    out: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    _, groups, features, channels, _ = x.shape
    (x, grad, written), views = arrange(entries == 1, out, x, grad)
    mean = matrix_argument(saved[0], (entries, groups, features))
    cov, whitening = [matrix_argument(tensor, (entries, groups, features, features)) for tensor in saved[1:]]
    scale = parameter_argument(weight, (groups, features, channels))
    grad_weight = x.new_empty((groups, features, channels), dtype=torch.float32)
    grad_bias = x.new_empty((groups, features, channels), dtype=torch.float32)
    call(
        function,
        grad.data_ptr(),
        views[1],
        x.data_ptr(),
        views[0],
        written.data_ptr(),
        views[2],
        get_address(scale),
        mean.data_ptr(),
        cov.data_ptr(),
        whitening.data_ptr(),
        eps,
        steps,
        grad_weight.data_ptr(),
        grad_bias.data_ptr(),
        torch.get_num_threads(),
    )
    if written is not out:
        out.copy_(written)
    return None if weight is None else grad_weight, None if bias is None else grad_bias
