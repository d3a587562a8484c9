"""From the map's gradients, through Newton's iteration and the mix of statistics, to what these add to dx."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm._runtime import smallest
from whitenorm.ops.triton.mixing import (
    PLACES,
    layer_moments,
    load_moments,
    places,
    statistic_cov,
    statistic_mean,
)
from whitenorm.ops.triton.scratch import get, put, scratch, times, times_symmetric, transposed
from whitenorm.ops.triton.solve import moments_of, with_ridge
from whitenorm.ops.triton.tiles import (
    identity,
    launch,
    load_matrix,
    load_vector,
    solve_options,
    store_matrix,
)
from whitenorm.ops.triton.unmix import unmix
from whitenorm.ops.types import AffineGrad, MapGradients, Method, Mixing, Solution, Statistics, StatisticsGrads
from whitenorm.solvers.newton import Newton

# U, S, Z, a product, and the derivatives of U and Z.
SLOTS = tl.constexpr(6)


def solve_backward(
    grads: MapGradients,
    kept: Solution,
    measured: Statistics,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> StatisticsGrads:
    """What the map's gradients come to: through the statistics to dx, and of γ, β and the logits."""
    several = grads.weight is not None or grads.bias is not None
    # Of γ and β, of each problem.
    vectors = None if several or weight is None else kept.mean.new_empty(2, *kept.mean.shape)
    inner = None if mixing is None else kept.mean.new_empty(*kept.mean.shape[:2], 2, PLACES.value)
    statistics = _pull_back(grads, kept, measured, method, None if several else weight, mixing, vectors, inner)
    sample, batch, grad_mixing = None, None, None
    if mixing is not None and inner is not None:
        sample, batch, grad_mixing = unmix(statistics, measured, method, mixing, inner, batch_is_constant)
    elif method.uses_sample and measured.sample is not None:
        sample = AffineGrad(*statistics, measured.sample.mean, measured.sample.num_values)
    elif measured.batch is not None and not batch_is_constant:
        batch = AffineGrad(*statistics, measured.batch.mean, measured.batch.num_values)
    if several:
        return StatisticsGrads(sample, batch, grads.weight, grads.bias, grad_mixing)
    return StatisticsGrads(sample, batch, *_vector_gradients(grads.offset, vectors, bias), grad_mixing)


def _vector_gradients(
    offset: Tensor, vectors: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Of γ and β ``(G, K, 1)``, from what each problem adds."""
    if vectors is None:
        return None, None if bias is None else _total(offset.unsqueeze(0))[0]
    weight, shift = _total(vectors)
    return weight, None if bias is None else shift


def _total(vectors: Tensor) -> Tensor:
    return (vectors[:, 0] if vectors.shape[1] == 1 else vectors.sum(1)).unsqueeze(-1)


def _pull_back(
    grads: MapGradients,
    kept: Solution,
    measured: Statistics,
    method: Method,
    weight: Tensor | None,
    mixing: Mixing | None,
    vectors: Tensor | None,
    inner: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradients of the pooled covariance and mean; without mixing, matrix and offset of what is added to dx."""
    assert isinstance(method.solver, Newton)
    problems, groups, features = kept.mean.shape
    matrix, offset = (part.new_empty(part.shape) for part in (kept.whitening, kept.mean))
    programs, room = scratch(offset, problems * groups, features, SLOTS.value)
    launch(
        _pull_back_kernel,
        (programs,),
        matrix,
        grads.matrix.contiguous(),
        grads.offset.contiguous(),
        kept.whitening.contiguous(),
        # Newton keeps the covariance, and W.
        kept.cov.contiguous(),
        None if weight is None else weight.contiguous(),
        *moments_of(measured.sample if mixing is not None and method.uses_sample else None),
        *moments_of(measured.batch if mixing is not None and method.uses_batch else None),
        matrix,
        offset,
        vectors,
        inner,
        room,
        matrices=problems * groups,
        groups=groups,
        features=features,
        steps=method.solver.steps,
        lost_trace=method.solver._lost_trace,
        smallest=smallest(torch.float32),
        factor=method.scale,
        **places(method),
        STATISTICS=len(method.statistics),
        **solve_options(features, matrix),
    )
    return matrix, offset


@triton.jit(do_not_specialize=["matrices", "groups", "features", "steps"])
def _pull_back_kernel(
    grad_matrix,
    grad_offset,
    whitening,
    cov,
    weight,
    own_mean,
    own_cov,
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
    """Grid (programs): B · G maps, one after the other. Reads the gradients of one map, its W and covariance, γ, and
    for the logits the moments; writes the gradients of covariance and mean, of γ and β, and the inner products that
    the logits' gradients are made of.
    """
    slots = scratch + tl.program_id(0) * SLOTS * BLOCK_K * BLOCK_K
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    index = tl.program_id(0).to(tl.int64)
    while index < matrices:
        group = index % groups
        start = index * features * features
        root = load_matrix(whitening + start, k, k, features)
        grad = load_matrix(grad_matrix + start, k, k, features)
        grad_of_mean = load_vector(grad_offset + index * features, k, features)
        if vectors is not None:
            entries = vectors + index * features + k
            tl.store(entries, tl.sum(grad * root, 1), mask=k < features)
            tl.store(entries + matrices.to(tl.int64) * features, grad_of_mean, mask=k < features)
        if weight is not None:
            scale = load_vector(weight + group * features, k, features)
            grad *= scale[:, None]
            grad_of_mean *= scale
        grad_of_mean = -tl.sum(root * grad_of_mean[:, None], 0)
        tl.store(offset + index * features + k, grad_of_mean, mask=k < features)

        through_trace = tl.sum(grad * root) / 2
        solved = load_matrix(cov + start, k, k, features)
        trace = tl.maximum(tl.sum(solved * eye) + lost_trace, smallest)
        put(slots, grad * (0.5 / tl.sqrt(trace)), BLOCK_K)
        along = get(slots, BLOCK_K) + transposed(slots, BLOCK_K)
        _derivative(slots, with_ridge(solved / trace, eye, 1.0), along, eye, steps, BLOCK_K, PRECISION)
        last = slots + (SLOTS - 1) * BLOCK_K * BLOCK_K
        derivative = (get(last, BLOCK_K) + transposed(last, BLOCK_K)) / 2
        solved = load_matrix(cov + start, k, k, features)
        through_trace += tl.sum(derivative * solved) / trace
        grad_of_cov = (derivative - through_trace * eye) * (factor / trace)
        store_matrix(matrix + start, grad_of_cov, k, k, features)

        if inner is not None:
            _inner_products(
                inner, grad_of_mean, grad_of_cov, own_mean, own_cov, batch_mean, batch_cov, eye,
                index, groups, features, BW, IW, BN, IN, LN, STATISTICS, BLOCK_K,
            )  # fmt: skip
        index += tl.num_programs(0)


@triton.jit
def _inner_products(
    inner,
    grad_of_mean,
    grad_of_cov,
    own_mean,
    own_cov,
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
    """Of the gradients with the statistics' differences from the first, which no common offset can drown."""
    k = tl.arange(0, BLOCK_K)
    own_centre, sample = load_moments(own_mean, own_cov, index, k, features, BLOCK_K)
    batch_centre, batch = load_moments(batch_mean, batch_cov, index % groups, k, features, BLOCK_K)
    layer_mean, layer_variance = 0.0, 0.0
    if LN >= 0:
        layer_mean, layer_variance = layer_moments(own_mean, own_cov, index // groups, groups, features, BLOCK_K)
    place = tl.arange(0, PLACES)
    mean_inner = tl.zeros((PLACES,), tl.float32)
    cov_inner = tl.zeros((PLACES,), tl.float32)
    first_mean = statistic_mean(own_centre, batch_centre, layer_mean, k, features, 0, BW, BN, LN)
    first_cov = statistic_cov(sample, batch, layer_variance, eye, 0, BW, IW, BN, IN)
    for other in tl.static_range(1, STATISTICS):
        one_mean = statistic_mean(own_centre, batch_centre, layer_mean, k, features, other, BW, BN, LN)
        one_cov = statistic_cov(sample, batch, layer_variance, eye, other, BW, IW, BN, IN)
        mean_inner += tl.where(place == other, tl.sum(grad_of_mean * (one_mean - first_mean)), 0.0)
        cov_inner += tl.where(place == other, tl.sum(grad_of_cov * (one_cov - first_cov)), 0.0)
    tl.store(inner + index * 2 * PLACES + place, mean_inner)
    tl.store(inner + index * 2 * PLACES + PLACES + place, cov_inner)


@triton.jit
def _derivative(u, start, along, eye, steps, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    """The derivative of Newton's last Z by the start, along a direction, both symmetric; as in the solver.

    ``u`` is the first slot; the derivative is left in the last.
    """
    zero = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    size: tl.constexpr = BLOCK_K * BLOCK_K
    s, z, m, du, dz = u + size, u + 2 * size, u + 3 * size, u + 4 * size, u + 5 * size
    put(u, start, BLOCK_K)
    put(s, 1.5 * eye - 0.5 * start, BLOCK_K)
    put(z, 1.5 * eye - 0.5 * start, BLOCK_K)
    put(du, along, BLOCK_K)
    put(dz, tl.where(steps > 0, -0.5, 0.0) * along, BLOCK_K)
    for _ in range(1, steps):
        put(m, times(du, s, zero, BLOCK_K, PRECISION), BLOCK_K)
        both = times_symmetric(u, m, zero, BLOCK_K, PRECISION)
        put(du, times(m, s, -0.5 * both, BLOCK_K, PRECISION), BLOCK_K)
        put(m, times(u, s, zero, BLOCK_K, PRECISION), BLOCK_K)
        squared = times(m, s, zero, BLOCK_K, PRECISION)
        put(u, squared, BLOCK_K)
        put(s, 1.5 * eye - 0.5 * squared, BLOCK_K)
        through = times(z, du, zero, BLOCK_K, PRECISION)
        put(dz, times(dz, s, -0.5 * through, BLOCK_K, PRECISION), BLOCK_K)
        put(z, times(z, s, zero, BLOCK_K, PRECISION), BLOCK_K)
