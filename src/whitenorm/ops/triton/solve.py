"""The solve: mix the statistics, run Newton's iteration, and update the running statistics."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.ops.torch.solve import update_running
from whitenorm.ops.triton.mixing import (
    layer_moments,
    load_moments,
    softmax,
    statistic_cov,
    statistic_indices,
    statistic_mean,
    weight_at,
)
from whitenorm.ops.triton.scratch import (
    allocate_scratch,
    as_operand,
    load_operand,
    locate_slots,
    multiply,
    wait_for_operands,
)
from whitenorm.ops.triton.tiles import EPSILON, identity, load_matrix, load_scalar, load_vector, store_matrix
from whitenorm.ops.triton.tiling import launch, plan, solve_options
from whitenorm.ops.types import Method, Mixing, Moments, Running, Solution, Statistics
from whitenorm.solvers.newton import Newton

# Matrices in scratch memory: two of each, Y and Z of a step and of the next, and T.
SLOTS = tl.constexpr(5)
# Most features with which they stay in registers instead.
_LARGEST_IN_REGISTERS = 32


def solve(statistics: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solution:
    """Pool the statistics, solve by Newton's iteration, and update the running statistics in place."""
    assert isinstance(method.solver, Newton)
    moments = statistics.sample if method.uses_sample else statistics.batch
    assert moments is not None
    problems, groups, features = moments.mean.shape
    # The kernel writes running statistics only to contiguous memory; torch updates others afterwards.
    later, running = (None, running) if _is_contiguous(running) else (running, None)
    whitening, cov = (moments.cov.new_empty(moments.cov.shape) for _ in range(2))
    mean = moments.mean.new_empty(moments.mean.shape)
    programs, scratch = allocate_scratch(mean, problems * groups, features, SLOTS.value, _LARGEST_IN_REGISTERS)
    launch(
        _solve,
        (programs,),
        whitening,
        *moment_arguments(statistics.sample if method.uses_sample else None),
        *moment_arguments(statistics.batch if method.uses_batch or running is not None else None),
        *logit_arguments(mixing),
        whitening,
        mean,
        cov,
        scratch,
        *_running_arguments(running, statistics.batch),
        matrices=problems * groups,
        groups=groups,
        features=features,
        steps=method.solver.steps,
        lost_trace=method.solver._lost_trace,
        eps=float(method.eps),
        scale=float(method.scale),
        smallest=smallest(torch.float32),
        **plan(statistic_indices, method.statistics),
        RUNNING=running is not None,
        RUNNING_WHITENING=running is not None and running.kind == "whitening" and mixing is None,
        MOMENTUM_IS_TENSOR=running is not None and isinstance(running.momentum, Tensor),
        **plan(solve_options, features, whitening.device),
    )
    if later is not None and statistics.batch is not None:
        update_running(later, statistics.batch, whitening)
    return Solution(whitening, mean, cov)


def _is_contiguous(running: Running | None) -> bool:
    tensors = () if running is None else (running.mean, running.matrix)
    return all(tensor is None or tensor.is_contiguous() for tensor in tensors)


def moment_arguments(moments: Moments | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if moments is None else (moments.mean.contiguous(), moments.cov.contiguous())


def logit_arguments(mixing: Mixing | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if mixing is None else (mixing.mean.contiguous(), mixing.cov.contiguous())


def _running_arguments(running: Running | None, batch: Moments | None) -> tuple[Any, ...]:
    if running is None:
        return None, None, None, None, None
    assert batch is not None
    count = batch.num_values if isinstance(batch.num_values, Tensor) else None
    momentum = running.momentum if isinstance(running.momentum, Tensor) else float(running.momentum)
    return running.mean, running.matrix, running.counter, momentum, count


@triton.jit(do_not_specialize=["matrices", "groups", "features", "steps"])
def _solve(
    sample_mean,
    sample_cov,
    batch_mean,
    batch_cov,
    mean_logits,
    cov_logits,
    whitening,
    mean,
    cov,
    scratch,
    running_mean,
    running_matrix,
    counter,
    momentum,
    count,
    matrices,
    groups,
    features,
    steps,
    lost_trace,
    eps,
    scale,
    smallest,
    BW: tl.constexpr,
    IW: tl.constexpr,
    BN: tl.constexpr,
    IN: tl.constexpr,
    LN: tl.constexpr,
    STATISTICS: tl.constexpr,
    RUNNING: tl.constexpr,
    RUNNING_WHITENING: tl.constexpr,
    MOMENTUM_IS_TENSOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Solve for B · G matrices.

    Grid: (programs,). A program solves one matrix after the other. It reads the moments of the group, of its sample (of
    all groups, for the layer's) and of the batch, and the logits. It writes the pooled mean, the covariance that is
    solved for, and its matrix. With the matrices of the first sample, it also updates the running statistics of their
    group and the counter of batches.
    """
    slots = locate_slots(scratch, SLOTS, BLOCK_K)
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    matrix = tl.program_id(0).to(tl.int64)
    while matrix < matrices:
        group = matrix % groups
        sample_centre, sample = load_moments(sample_mean, sample_cov, matrix, k, features, BLOCK_K)
        batch_centre, batch = load_moments(batch_mean, batch_cov, group, k, features, BLOCK_K)
        if mean_logits is None:
            centre = batch_centre if IW < 0 else sample_centre
            pooled = batch if IW < 0 else sample
        else:
            layer_mean, layer_variance = 0.0, 0.0
            if LN >= 0:
                layer_mean, layer_variance = layer_moments(
                    sample_mean, sample_cov, matrix // groups, groups, features, BLOCK_K
                )
            mean_weights, cov_weights = softmax(mean_logits, STATISTICS), softmax(cov_logits, STATISTICS)
            centre = tl.zeros((BLOCK_K,), tl.float32)
            pooled = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
            for index in tl.static_range(STATISTICS):
                centre += weight_at(mean_weights, index) * statistic_mean(
                    sample_centre, batch_centre, layer_mean, k, features, index, BW, BN, LN
                )
                pooled += weight_at(cov_weights, index) * statistic_cov(
                    sample, batch, layer_variance, eye, index, BW, IW, BN, IN
                )
        pooled = scale * pooled + eps * eye
        tl.store(mean + matrix * features + k, centre, mask=k < features)
        store_matrix(cov + matrix * features * features, pooled, k, k, features)
        root = _newton(pooled, eye, slots, steps, lost_trace, smallest, BLOCK_K, PRECISION)
        store_matrix(whitening + matrix * features * features, root, k, k, features)

        if RUNNING and matrix < groups:
            share = load_scalar(momentum, MOMENTUM_IS_TENSOR)
            latest = root
            if not RUNNING_WHITENING:
                _, latest = load_moments(batch_mean, batch_cov, group, k, features, BLOCK_K)
            _update_running(
                running_mean, running_matrix, counter, share, count, batch_centre, latest, group, features, BLOCK_K
            )
        matrix += tl.num_programs(0)


@triton.jit
def _update_running(
    running_mean, running_matrix, counter, share, count, mean, matrix, group, features, BLOCK_K: tl.constexpr
):
    """Update the running statistics of one group and, with the first group, the counter.

    A batch of fewer than two values changes nothing.
    """
    k = tl.arange(0, BLOCK_K)
    has_values = True if count is None else tl.load(count) > 1
    if has_values:
        # Several threads may load an entry that one of them stores.
        if running_mean is not None:
            entries = running_mean + group * features
            latest = _lerp(load_vector(entries, k, features), mean, share)
            tl.debug_barrier()
            tl.store(entries + k, latest, mask=k < features)
        if running_matrix is not None:
            entries = running_matrix + group * features * features
            latest = _lerp(load_matrix(entries, k, k, features), matrix, share)
            tl.debug_barrier()
            store_matrix(entries, latest, k, k, features)
        if counter is not None and group == 0:
            batches = tl.load(counter)
            tl.debug_barrier()
            tl.store(counter, batches + 1)


@triton.jit
def _newton(cov, eye, slots, steps, lost_trace, smallest, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Run Newton's iteration in the coupled form, with the factor -1/2 in Y; see :class:`whitenorm.solvers.Newton`.

    T is kept without its 3/2 on the diagonal. The next Y and Z both need T but not each other.
    """
    zero = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    trace = tl.maximum(tl.sum(cov * eye) + lost_trace, smallest)
    start = add_ridge(cov * (-0.5 / trace), eye, -1.0)
    root = tl.where(steps > 0, start + 1.5 * eye, eye)
    wait_for_operands(slots)
    y = as_operand(start, slots, 0, BLOCK_K)
    z = as_operand(root, slots, 2, BLOCK_K)
    wait_for_operands(slots)
    # The first T is the first Z.
    y = as_operand(multiply(y, z, zero, BLOCK_K, PRECISION), slots, 1, BLOCK_K)
    wait_for_operands(slots)
    for step in range(1, steps):
        t = as_operand(multiply(z, y, zero, BLOCK_K, PRECISION), slots, 4, BLOCK_K)
        wait_for_operands(slots)
        if step < steps - 1:
            total = multiply(y, t, 1.5 * load_operand(y, BLOCK_K), BLOCK_K, PRECISION)
            y = as_operand(total, slots, (step + 1) % 2, BLOCK_K)
        root = multiply(t, z, 1.5 * load_operand(z, BLOCK_K), BLOCK_K, PRECISION)
        z = as_operand(root, slots, 2 + step % 2, BLOCK_K)
        wait_for_operands(slots)
    return root / tl.sqrt(trace)


@triton.jit
def add_ridge(start, eye, sign):
    """Add a ridge of the size of rounding errors, which may have made eigenvalues negative."""
    return start + (sign * 2 * EPSILON) * tl.sqrt(tl.sum(start * start)) * eye


@triton.jit
def _lerp(old, new, share):
    """Interpolate as ``torch.lerp`` does: exact at both ends."""
    return tl.where(share < 0.5, old + share * (new - old), new - (new - old) * (1 - share))
