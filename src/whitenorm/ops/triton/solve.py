"""From moments to whitening matrices: the mix of statistics, Newton's iteration, and the running statistics."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.ops.running import update_running
from whitenorm.ops.triton.mixing import (
    layer_moments,
    load_moments,
    places,
    softmax,
    statistic_cov,
    statistic_mean,
    weight_at,
)
from whitenorm.ops.triton.scratch import put, scratch, times
from whitenorm.ops.triton.tiles import (
    EPSILON,
    identity,
    launch,
    load_matrix,
    load_vector,
    number_of,
    solve_options,
    store_matrix,
)
from whitenorm.ops.types import Method, Mixing, Moments, Running, Solution, Statistics
from whitenorm.solvers.newton import Newton

# Y, Z and T of the iteration.
SLOTS = tl.constexpr(3)


def solve(measured: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solution:
    """The statistics pooled, Newton's matrices for them, and the running statistics updated in place."""
    assert isinstance(method.solver, Newton)
    moments = measured.sample if method.uses_sample else measured.batch
    assert moments is not None
    problems, groups, features = moments.mean.shape
    later, running = (None, running) if _lies_dense(running) else (running, None)
    whitening, cov = (moments.cov.new_empty(moments.cov.shape) for _ in range(2))
    mean = moments.mean.new_empty(moments.mean.shape)
    programs, room = scratch(mean, problems * groups, features, SLOTS.value)
    launch(
        _solve,
        (programs,),
        whitening,
        *moments_of(measured.sample if method.uses_sample else None),
        *moments_of(measured.batch if method.uses_batch or running is not None else None),
        *logits_of(mixing),
        whitening,
        mean,
        cov,
        room,
        *_running(running, measured.batch),
        matrices=problems * groups,
        groups=groups,
        features=features,
        steps=method.solver.steps,
        lost_trace=method.solver._lost_trace,
        eps=float(method.eps),
        scale=float(method.scale),
        smallest=smallest(torch.float32),
        **places(method),
        STATISTICS=len(method.statistics),
        RUNNING=running is not None,
        RUNNING_WHITENING=running is not None and running.kind == "whitening" and mixing is None,
        MOMENTUM_IS_TENSOR=running is not None and isinstance(running.momentum, Tensor),
        **solve_options(features, whitening),
    )
    if later is not None and measured.batch is not None:
        update_running(later, measured.batch, whitening)
    return Solution(whitening, mean, cov)


def _lies_dense(running: Running | None) -> bool:
    """Whether the kernel can write the running statistics; those of other strides are left to torch."""
    tensors = () if running is None else (running.mean, running.matrix)
    return all(tensor is None or tensor.is_contiguous() for tensor in tensors)


def moments_of(moments: Moments | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if moments is None else (moments.mean.contiguous(), moments.cov.contiguous())


def logits_of(mixing: Mixing | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if mixing is None else (mixing.mean.contiguous(), mixing.cov.contiguous())


def _running(running: Running | None, batch: Moments | None) -> tuple[Any, ...]:
    if running is None:
        return None, None, None, None, None
    assert batch is not None
    number = batch.num_values if isinstance(batch.num_values, Tensor) else None
    momentum = running.momentum if isinstance(running.momentum, Tensor) else float(running.momentum)
    return running.mean, running.matrix, running.counter, momentum, number


@triton.jit(do_not_specialize=["matrices", "groups", "features", "steps"])
def _solve(
    own_mean,
    own_cov,
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
    number,
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
    """Grid (programs): B · G matrices, one after the other. Reads the moments of one group, of its sample (all groups,
    for the layer's) and of the batch, and the logits; writes the pooled mean, the covariance solved for, and its
    matrix. With the first sample's matrices the running statistics of their group are updated, and the batch counted.
    """
    slots = scratch + tl.program_id(0) * SLOTS * BLOCK_K * BLOCK_K
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    matrix = tl.program_id(0).to(tl.int64)
    while matrix < matrices:
        group = matrix % groups
        own_centre, own = load_moments(own_mean, own_cov, matrix, k, features, BLOCK_K)
        batch_centre, batch = load_moments(batch_mean, batch_cov, group, k, features, BLOCK_K)
        if mean_logits is None:
            centre = batch_centre if IW < 0 else own_centre
            pooled = batch if IW < 0 else own
        else:
            layer_mean, layer_variance = 0.0, 0.0
            if LN >= 0:
                sample = matrix // groups
                layer_mean, layer_variance = layer_moments(own_mean, own_cov, sample, groups, features, BLOCK_K)
            mean_weights, cov_weights = softmax(mean_logits, STATISTICS), softmax(cov_logits, STATISTICS)
            centre = tl.zeros((BLOCK_K,), tl.float32)
            pooled = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
            for place in tl.static_range(STATISTICS):
                one = statistic_mean(own_centre, batch_centre, layer_mean, k, features, place, BW, BN, LN)
                centre += weight_at(mean_weights, place) * one
                pooled += weight_at(cov_weights, place) * statistic_cov(
                    own, batch, layer_variance, eye, place, BW, IW, BN, IN
                )
        solved = scale * pooled + eps * eye
        tl.store(mean + matrix * features + k, centre, mask=k < features)
        store_matrix(cov + matrix * features * features, solved, k, k, features)
        root = _newton(solved, eye, slots, steps, lost_trace, smallest, BLOCK_K, PRECISION)
        store_matrix(whitening + matrix * features * features, root, k, k, features)

        if RUNNING and matrix < groups:
            share = number_of(momentum, MOMENTUM_IS_TENSOR)
            latest = root if RUNNING_WHITENING else batch
            _update(
                running_mean, running_matrix, counter, share, number, batch_centre, latest, group, features, BLOCK_K
            )
        matrix += tl.num_programs(0)


@triton.jit
def _update(running_mean, running_matrix, counter, share, number, mean, matrix, group, features, BLOCK_K: tl.constexpr):
    """Update the running statistics of one group and, with the first group, the counter.

    A batch of fewer than two values changes nothing.
    """
    k = tl.arange(0, BLOCK_K)
    present = True if number is None else tl.load(number) > 1
    if present:
        if running_mean is not None:
            entries = running_mean + group * features
            latest = _lerp(load_vector(entries, k, features), mean, share)
            tl.store(entries + k, latest, mask=k < features)
        if running_matrix is not None:
            entries = running_matrix + group * features * features
            latest = _lerp(load_matrix(entries, k, k, features), matrix, share)
            store_matrix(entries, latest, k, k, features)
        if counter is not None and group == 0:
            tl.store(counter, tl.load(counter) + 1)


@triton.jit
def _newton(cov, eye, slots, steps, lost_trace, smallest, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """Newton's iteration in the coupled form, with the factor -1/2 in Y; :class:`whitenorm.solvers.newton.Newton`."""
    zero = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    y, t, z = slots, slots + BLOCK_K * BLOCK_K, slots + 2 * BLOCK_K * BLOCK_K
    trace = tl.maximum(tl.sum(cov * eye) + lost_trace, smallest)
    start = with_ridge(cov * (-0.5 / trace), eye, -1.0)
    put(y, start, BLOCK_K)
    put(t, start + 1.5 * eye, BLOCK_K)
    root = tl.where(steps > 0, start + 1.5 * eye, eye)
    put(z, root, BLOCK_K)
    for _ in range(1, steps):
        put(y, times(y, t, zero, BLOCK_K, PRECISION), BLOCK_K)
        put(t, times(z, y, 1.5 * eye, BLOCK_K, PRECISION), BLOCK_K)
        root = times(t, z, zero, BLOCK_K, PRECISION)
        put(z, root, BLOCK_K)
    return root / tl.sqrt(trace)


@triton.jit
def with_ridge(start, eye, sign):
    """The start with a ridge of rounding error's size, below which rounding may have made eigenvalues negative."""
    return start + (sign * 2 * EPSILON) * tl.sqrt(tl.sum(start * start)) * eye


@triton.jit
def _lerp(old, new, share):
    """As torch: exact at both ends."""
    return tl.where(share < 0.5, old + share * (new - old), new - (new - old) * (1 - share))
