"""The six steps of :mod:`whitenorm.ops.types` by the C++ kernels of ``kernels.cpp``.

Every tensor is checked here, because the kernels take addresses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.native.library import load_library
from whitenorm.ops.native.views import arrange, matrix_argument
from whitenorm.ops.torch import passes
from whitenorm.ops.torch import solve as torch_solve
from whitenorm.ops.types import (
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
from whitenorm.solvers.base import Solver
from whitenorm.solvers.newton import Newton

# The largest matrix that Newton's iteration solves for.
LARGEST_SOLVED = 64
# The kernels keep the iterates symmetric. With more steps, this lets rounding errors of singular matrices grow.
MOST_STEPS = 12


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    if not sample:
        return Statistics(None, _moments(x, pooled=True))
    per_sample = _moments(x, pooled=False)
    return Statistics(per_sample, passes.pool_samples(per_sample) if batch else None)


def _moments(x: Tensor, pooled: bool) -> Moments:
    n, groups, features, channels, positions = x.shape
    num_values = channels * positions * (n if pooled else 1)
    size = (1 if pooled else n, groups, features)
    (x,), (view,) = arrange(pooled, None, x)
    mean = x.new_empty(size, dtype=torch.float32)
    cov = x.new_empty((*size, features), dtype=torch.float32)
    call("wn_moments", x.data_ptr(), view, pooled, mean.data_ptr(), cov.data_ptr(), torch.get_num_threads())
    return Moments(mean, cov, num_values)


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    assert out is not None
    pooled = whitening.shape[0] == 1
    (x, written), views = arrange(pooled, out, x)
    n, groups, features, channels, _ = x.shape
    entries = 1 if pooled else n
    whitening = matrix_argument(whitening, (entries, groups, features, features))
    mean = None if mean is None else matrix_argument(mean.expand(entries, -1, -1), (entries, groups, features))
    weight, bias = (parameter_argument(tensor, (groups, features, channels)) for tensor in (weight, bias))
    call(
        "wn_apply",
        x.data_ptr(),
        views[0],
        written.data_ptr(),
        views[1],
        whitening.data_ptr(),
        get_address(mean),
        pooled,
        get_address(weight),
        get_address(bias),
        torch.get_num_threads(),
    )
    return out if written is out else out.copy_(written)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    pooled = whitening.shape[0] == 1
    (x, grad), views = arrange(pooled, None, x, grad)
    n, groups, features, channels, _ = x.shape
    entries = 1 if pooled else n
    mean = matrix_argument(mean.expand(entries, -1, -1), (entries, groups, features))
    matrix, offset = mean.new_empty(entries, groups, features, features), torch.empty_like(mean)
    # γ and β of features of one channel are folded into the map, and are part of its gradients.
    scaled = channels > 1
    whitening = matrix_argument(whitening, matrix.shape)
    weight = parameter_argument(weight, (groups, features, channels)) if scaled else None
    grad_weight, grad_bias = mean.new_empty((2, groups, features, channels)) if scaled else (None, None)
    call(
        "wn_map_gradients",
        grad.data_ptr(),
        views[1],
        x.data_ptr(),
        views[0],
        mean.data_ptr(),
        pooled,
        whitening.data_ptr() if scaled else None,
        get_address(weight),
        matrix.data_ptr(),
        offset.data_ptr(),
        get_address(grad_weight),
        get_address(grad_bias),
        torch.get_num_threads(),
    )
    return MapGradients(matrix, offset, None if weight is None else grad_weight, None if bias is None else grad_bias)


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    assert out is not None
    has_matrix = sample is not None or batch is not None
    matrix, offset, mean = torch_solve.combine_affine_grads(sample, batch) if has_matrix else (None, None, None)
    pooled, matrix_pooled = whitening.shape[0] == 1, matrix is None or matrix.shape[0] == 1
    (x, grad, written), views = arrange(pooled and matrix_pooled, out, x, grad)
    n, groups, features, channels, _ = x.shape
    whitening = matrix_argument(whitening, (1 if pooled else n, groups, features, features))
    entries = 1 if matrix_pooled else n
    if matrix is not None and offset is not None and mean is not None:
        matrix = matrix_argument(matrix, (entries, groups, features, features))
        offset = matrix_argument(offset.squeeze(-1).expand(entries, -1, -1), (entries, groups, features))
        mean = matrix_argument(mean.expand(entries, -1, -1), (entries, groups, features))
    weight = parameter_argument(weight, (groups, features, channels))
    call(
        "wn_input_gradient",
        grad.data_ptr(),
        views[1],
        x.data_ptr(),
        views[0],
        written.data_ptr(),
        views[2],
        whitening.data_ptr(),
        pooled,
        get_address(weight),
        get_address(matrix),
        get_address(offset),
        get_address(mean),
        matrix_pooled,
        torch.get_num_threads(),
    )
    return out if written is out else out.copy_(written)


class _NativeNewton(Solver):
    """Newton's iteration by the C++ kernels."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        cov = matrix_argument(cov, cov.shape)
        size, whitening = cov.shape[-1], torch.empty_like(cov)
        count = cov.numel() // size**2
        call(
            "wn_newton",
            cov.data_ptr(),
            count,
            size,
            0.0,
            self.steps,
            whitening.data_ptr(),
            torch.get_num_threads(),
        )
        return whitening, ()

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        grad, cov, whitening = (matrix_argument(tensor, cov.shape) for tensor in (grad, cov, whitening))
        size, grad_cov = cov.shape[-1], torch.empty_like(cov)
        count = cov.numel() // size**2
        call(
            "wn_newton_backward",
            grad.data_ptr(),
            cov.data_ptr(),
            whitening.data_ptr(),
            count,
            size,
            0.0,
            self.steps,
            grad_cov.data_ptr(),
            torch.get_num_threads(),
        )
        return grad_cov


def _with_native_newton(method: Method) -> Method:
    assert type(method.solver) is Newton
    return method._replace(solver=_NativeNewton(method.solver.steps))


def solve(statistics: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solution:
    return torch_solve.solve(statistics, _with_native_newton(method), mixing, running)


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
    return torch_solve.solve_backward(
        grads, solution, statistics, _with_native_newton(method), weight, bias, mixing, batch_is_constant
    )


def parameter_argument(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return None if tensor is None else matrix_argument(tensor, shape)


def get_address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def call(name: str, *args: object) -> None:
    """Call a function of the library; raise MemoryError if it is out of memory."""
    functions = load_library().functions
    assert functions is not None
    if getattr(functions, name)(*args):
        raise MemoryError(f"expected memory for the workspace of {name} (got none)")
