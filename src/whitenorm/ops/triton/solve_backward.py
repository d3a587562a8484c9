"""Backward of the solve: from the map's gradients through Newton's iteration to those of the statistics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.ops.triton.mixing import (
    BLOCK_LOGITS,
    layer_moments,
    load_moments,
    statistic_cov,
    statistic_indices,
    statistic_mean,
)
from whitenorm.ops.triton.mixing_backward import mixing_backward
from whitenorm.ops.triton.scratch import (
    allocate_scratch,
    as_operand,
    load_operand,
    load_transposed,
    locate_slots,
    multiply,
    multiply_symmetric,
    wait_for_operands,
)
from whitenorm.ops.triton.solve import add_ridge, moment_arguments
from whitenorm.ops.triton.tiles import identity, load_matrix, load_vector, store_matrix
from whitenorm.ops.triton.tiling import launch, plan, solve_options
from whitenorm.ops.types import AffineGrad, MapGradients, Method, Mixing, Solution, Statistics, StatisticsGrads
from whitenorm.solvers.newton import Newton

# Matrices in scratch memory: two of each, V, Z and dZ of a step and of the next, and T, R and V·S.
SLOTS = tl.constexpr(9)
# Most features with which they stay in registers instead.
_LARGEST_IN_REGISTERS = 16


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
    """Compute the gradients through the statistics, and those of γ, β and the logits."""
    statistics_grads, vectors = differentiate(
        grads, solution, statistics, method, scale_of_rows(grads, weight), mixing, batch_is_constant
    )
    return add_parameters(statistics_grads, grads, vectors, bias)


def scale_of_rows(grads: MapGradients, weight: Tensor | None) -> Tensor | None:
    """Return γ if it multiplies the rows of the matrix, None where it has gradients of its own."""
    return weight if grads.weight is None and grads.bias is None else None


def add_parameters(
    statistics_grads: StatisticsGrads, grads: MapGradients, vectors: Tensor | None, bias: Tensor | None
) -> StatisticsGrads:
    """Add the gradients of γ and β to those of the statistics."""
    if grads.weight is not None or grads.bias is not None:
        return statistics_grads._replace(weight=grads.weight, bias=grads.bias)
    weight, shift = _parameter_gradients(grads.offset, vectors, bias)
    return statistics_grads._replace(weight=weight, bias=shift)


def differentiate(
    grads: MapGradients,
    solution: Solution,
    statistics: Statistics,
    method: Method,
    weight: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> tuple[StatisticsGrads, Tensor | None]:
    """Compute the gradients of the statistics and logits, and the sums of each problem ``(2, B, G, K)`` for γ and β."""
    vectors = None if weight is None else solution.mean.new_empty(2, *solution.mean.shape)
    inner = None if mixing is None else solution.mean.new_empty(*solution.mean.shape[:2], 2, BLOCK_LOGITS.value)
    pooled = _newton_backward(grads, solution, statistics, method, weight, mixing, vectors, inner)
    sample, batch, grad_mixing = None, None, None
    if mixing is not None and inner is not None:
        sample, batch, grad_mixing = mixing_backward(pooled, statistics, method, mixing, inner, batch_is_constant)
    elif method.uses_sample and statistics.sample is not None:
        sample = AffineGrad(*pooled, statistics.sample.mean, statistics.sample.num_values)
    elif statistics.batch is not None and not batch_is_constant:
        batch = AffineGrad(*pooled, statistics.batch.mean, statistics.batch.num_values)
    return StatisticsGrads(sample, batch, None, None, grad_mixing), vectors


def _parameter_gradients(
    offset: Tensor, vectors: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients ``(G, K, 1)`` of γ and β, summed over problems."""
    if vectors is None:
        return None, None if bias is None else _sum_problems(offset.unsqueeze(0))[0]
    weight, shift = _sum_problems(vectors)
    return weight, None if bias is None else shift


def _sum_problems(vectors: Tensor) -> Tensor:
    return (vectors[:, 0] if vectors.shape[1] == 1 else vectors.sum(1)).unsqueeze(-1)


def _newton_backward(
    grads: MapGradients,
    solution: Solution,
    statistics: Statistics,
    method: Method,
    weight: Tensor | None,
    mixing: Mixing | None,
    vectors: Tensor | None,
    inner: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the pooled covariance and mean."""
    assert isinstance(method.solver, Newton)
    problems, groups, features = solution.mean.shape
    matrix, offset = (part.new_empty(part.shape) for part in (solution.whitening, solution.mean))
    programs, scratch = allocate_scratch(offset, problems * groups, features, SLOTS.value, _LARGEST_IN_REGISTERS)
    launch(
        _newton_backward_kernel,
        (programs,),
        matrix,
        grads.matrix.contiguous(),
        grads.offset.contiguous(),
        solution.whitening.contiguous(),
        solution.cov.contiguous(),
        None if weight is None else weight.contiguous(),
        *moment_arguments(statistics.sample if mixing is not None and method.uses_sample else None),
        *moment_arguments(statistics.batch if mixing is not None and method.uses_batch else None),
        matrix,
        offset,
        vectors,
        inner,
        scratch,
        matrices=problems * groups,
        groups=groups,
        features=features,
        steps=method.solver.steps,
        lost_trace=method.solver._lost_trace,
        smallest=smallest(torch.float32),
        factor=method.scale,
        **plan(statistic_indices, method.statistics),
        **plan(solve_options, features, matrix.device),
    )
    return matrix, offset


@triton.jit(do_not_specialize=["matrices", "groups", "features", "steps"])
def _newton_backward_kernel(
    grad_matrix,
    grad_offset,
    whitening,
    cov,
    weight,
    sample_mean,
    sample_cov,
    batch_mean,
    batch_cov,
    matrix,
    offset,
    vectors,
    inner,
    scratch,
    matrices,
    groups,
    features,
    steps,
    lost_trace,
    smallest,
    factor,
    BW: tl.constexpr,
    IW: tl.constexpr,
    BN: tl.constexpr,
    IN: tl.constexpr,
    LN: tl.constexpr,
    STATISTICS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Differentiate B · G solves.

    Grid: (programs,). A program handles one matrix after the other. It reads the gradients of the map, its W and
    covariance, γ, and, for the logits, the moments. It writes the gradients of the covariance and mean, of γ and β, and
    the inner products of which the logits' gradients are sums.
    """
    slots = locate_slots(scratch, SLOTS, BLOCK_K)
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    index = tl.program_id(0).to(tl.int64)
    while index < matrices:
        group = index % groups
        start = index * features * features
        root = load_matrix(whitening + start, k, k, features)
        grad = load_matrix(grad_matrix + start, k, k, features)
        grad_mean = load_vector(grad_offset + index * features, k, features)
        if vectors is not None:
            entries = vectors + index * features + k
            tl.store(entries, tl.sum(grad * root, 1), mask=k < features)
            tl.store(entries + matrices.to(tl.int64) * features, grad_mean, mask=k < features)
        if weight is not None:
            scale = load_vector(weight + group * features, k, features)
            grad *= scale[:, None]
            grad_mean *= scale
        grad_mean = -tl.sum(root * grad_mean[:, None], 0)
        tl.store(offset + index * features + k, grad_mean, mask=k < features)

        grad_trace = tl.sum(grad * root) / 2
        pooled = load_matrix(cov + start, k, k, features)
        trace = tl.maximum(tl.sum(pooled * eye) + lost_trace, smallest)
        first = add_ridge(pooled * (-0.5 / trace), eye, -1.0)
        wait_for_operands(slots)
        half = _differentiate(first, grad * (-0.25 / tl.sqrt(trace)), eye, slots, steps, BLOCK_K, PRECISION)
        half = as_operand(half, slots, 6, BLOCK_K)
        wait_for_operands(slots)
        derivative = (load_operand(half, BLOCK_K) + load_transposed(half, BLOCK_K)) / 2
        pooled = load_matrix(cov + start, k, k, features)
        grad_trace += tl.sum(derivative * pooled) / trace
        grad_cov = (derivative - grad_trace * eye) * (factor / trace)
        store_matrix(matrix + start, grad_cov, k, k, features)

        if inner is not None:
            _inner_products(
                inner, grad_mean, grad_cov, sample_mean, sample_cov, batch_mean, batch_cov, eye,
                index, groups, features, BW, IW, BN, IN, LN, STATISTICS, BLOCK_K,
            )  # fmt: skip
        index += tl.num_programs(0)


@triton.jit
def _inner_products(
    inner,
    grad_mean,
    grad_cov,
    sample_mean,
    sample_cov,
    batch_mean,
    batch_cov,
    eye,
    index,
    groups,
    features,
    BW: tl.constexpr,
    IW: tl.constexpr,
    BN: tl.constexpr,
    IN: tl.constexpr,
    LN: tl.constexpr,
    STATISTICS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Store the inner products of the gradients with each statistic minus the first.

    The difference is exact even if all statistics share a large offset.
    """
    k = tl.arange(0, BLOCK_K)
    sample_centre, sample = load_moments(sample_mean, sample_cov, index, k, features, BLOCK_K)
    batch_centre, batch = load_moments(batch_mean, batch_cov, index % groups, k, features, BLOCK_K)
    layer_mean, layer_variance = 0.0, 0.0
    if LN >= 0:
        layer_mean, layer_variance = layer_moments(sample_mean, sample_cov, index // groups, groups, features, BLOCK_K)
    logit = tl.arange(0, BLOCK_LOGITS)
    mean_inner = tl.zeros((BLOCK_LOGITS,), tl.float32)
    cov_inner = tl.zeros((BLOCK_LOGITS,), tl.float32)
    first_mean = statistic_mean(sample_centre, batch_centre, layer_mean, k, features, 0, BW, BN, LN)
    first_cov = statistic_cov(sample, batch, layer_variance, eye, 0, BW, IW, BN, IN)
    for other in tl.static_range(1, STATISTICS):
        other_mean = statistic_mean(sample_centre, batch_centre, layer_mean, k, features, other, BW, BN, LN)
        other_cov = statistic_cov(sample, batch, layer_variance, eye, other, BW, IW, BN, IN)
        mean_inner += tl.where(logit == other, tl.sum(grad_mean * (other_mean - first_mean)), 0.0)
        cov_inner += tl.where(logit == other, tl.sum(grad_cov * (other_cov - first_cov)), 0.0)
    tl.store(inner + index * 2 * BLOCK_LOGITS + logit, mean_inner)
    tl.store(inner + index * 2 * BLOCK_LOGITS + BLOCK_LOGITS + logit, cov_inner)


@triton.jit
def _differentiate(first, change, eye, slots, steps, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Return the derivative of Newton's last Z where the first S changes by ``change`` plus its transpose.

    It is symmetric but for rounding. The recurrence is that of the solver: with S = (3I - U)/2, U' = U·S² and Z' = Z·S,
    the derivative of S is T + Tᵀ. Here V = -U/2, of which ``first`` is the first, so that X·S is 3/2 X + X·V. Products
    between two barriers do not need each other.
    """
    v = as_operand(first, slots, 0, BLOCK_K)
    t = as_operand(change, slots, 6, BLOCK_K)
    z = as_operand(first + 1.5 * eye, slots, 2, BLOCK_K)
    wait_for_operands(slots)
    change = load_operand(t, BLOCK_K) + load_transposed(t, BLOCK_K)
    dz = as_operand(change, slots, 4, BLOCK_K)
    for step in range(1, steps):
        total = 1.5 * (load_operand(t, BLOCK_K) + load_transposed(t, BLOCK_K))
        r = as_operand(multiply_symmetric(v, t, 1.0, total, BLOCK_K, PRECISION), slots, 7, BLOCK_K)
        total = multiply(v, v, 1.5 * load_operand(v, BLOCK_K), BLOCK_K, PRECISION)
        product = as_operand(total, slots, 8, BLOCK_K)
        if step > 1:
            total = multiply_symmetric(z, t, 1.0, 1.5 * load_operand(dz, BLOCK_K), BLOCK_K, PRECISION)
            dz = as_operand(multiply(dz, v, total, BLOCK_K, PRECISION), slots, 4 + step % 2, BLOCK_K)
            total = multiply(z, v, 1.5 * load_operand(z, BLOCK_K), BLOCK_K, PRECISION)
            z = as_operand(total, slots, 2 + step % 2, BLOCK_K)
        wait_for_operands(slots)
        total = multiply_symmetric(v, r, 0.5, 0.75 * load_transposed(r, BLOCK_K), BLOCK_K, PRECISION)
        t = as_operand(total, slots, 6, BLOCK_K)
        total = multiply(product, v, 1.5 * load_operand(product, BLOCK_K), BLOCK_K, PRECISION)
        v = as_operand(total, slots, step % 2, BLOCK_K)
        wait_for_operands(slots)
    if steps > 1:
        total = multiply_symmetric(z, t, 1.0, 1.5 * load_operand(dz, BLOCK_K), BLOCK_K, PRECISION)
        change = multiply(dz, v, total, BLOCK_K, PRECISION)
        wait_for_operands(slots)
    return tl.where(steps > 0, change, 0.0)
