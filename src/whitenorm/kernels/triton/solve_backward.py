"""From the map's gradients, through Newton's iteration and the mix of statistics, to what these add to dx."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.kernels.triton.mixing import (
    PLACES,
    layer_moments,
    load_diagonal,
    load_moments,
    places,
    softmax,
    statistic_cov,
    statistic_mean,
    weight_at,
)
from whitenorm.kernels.triton.scratch import get, put, scratch, times, times_symmetric, transposed
from whitenorm.kernels.triton.solve import logits_of, moments_of, with_ridge
from whitenorm.kernels.triton.tiles import (
    block_features,
    identity,
    launch,
    load_matrix,
    load_vector,
    solve_options,
    store_matrix,
)
from whitenorm.kernels.types import Back, Kept, Linear, MapGradients, Measured, Method, Mixing
from whitenorm.solvers.base import smallest
from whitenorm.solvers.newton import Newton

# Rows of a matrix, and samples at a time, that a program sums.
_ROWS = 4
_SAMPLES = 8
# Matrices at a time whose gradients of the logits are summed.
_MATRICES = 64


# U, S, Z, a product, and the derivatives of U and Z.
SLOTS = tl.constexpr(6)


def solve_backward(
    grads: MapGradients,
    kept: Kept,
    measured: Measured,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> Back:
    """What the map's gradients come to: through the statistics to dx, and of γ, β and the logits."""
    several = grads.weight is not None or grads.bias is not None
    # Of γ and β, of each problem.
    vectors = None if several or weight is None else kept.mean.new_empty(2, *kept.mean.shape)
    inner = None if mixing is None else kept.mean.new_empty(*kept.mean.shape[:2], 2, PLACES.value)
    statistics = _pull_back(grads, kept, measured, method, None if several else weight, mixing, vectors, inner)
    own, batch, grad_mixing = None, None, None
    if mixing is not None and inner is not None:
        own, batch, grad_mixing = _unmix(statistics, measured, method, mixing, inner, batch_is_constant)
    elif method.uses_own() and measured.own is not None:
        own = Linear(*statistics, measured.own.mean, measured.own.number)
    elif measured.batch is not None and not batch_is_constant:
        batch = Linear(*statistics, measured.batch.mean, measured.batch.number)
    if several:
        return Back(own, batch, grads.weight, grads.bias, grad_mixing)
    return Back(own, batch, *_vector_gradients(grads.offset, vectors, bias), grad_mixing)


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
    kept: Kept,
    measured: Measured,
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
        kept.solver[0].contiguous(),
        None if weight is None else weight.contiguous(),
        *moments_of(measured.own if mixing is not None and method.uses_own() else None),
        *moments_of(measured.batch if mixing is not None and method.uses_batch() else None),
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


def _unmix(
    statistics: tuple[Tensor, Tensor],
    measured: Measured,
    method: Method,
    mixing: Mixing,
    inner: Tensor,
    batch_is_constant: bool,
) -> tuple[Linear | None, Linear | None, Mixing]:
    """From the pooled statistics' gradients to what each sample and the batch add to dx, and to those of the logits."""
    cov, mean = statistics
    problems, groups, features = mean.shape
    own, batch = None, None
    if method.uses_own() and measured.own is not None:
        own = Linear(torch.empty_like(cov), torch.empty_like(mean), measured.own.mean, measured.own.number)
    if method.uses_batch() and measured.batch is not None and not batch_is_constant:
        shape = (1, groups, features)
        batch = Linear(
            cov.new_empty(*shape, features), cov.new_empty(shape), measured.batch.mean, measured.batch.number
        )
    logits = Mixing(*(part.new_empty(part.shape) for part in mixing))
    row_blocks = triton.cdiv(features, _ROWS)
    own_programs = 0 if own is None else problems * groups
    batch_programs = 0 if batch is None else groups * row_blocks
    launch(
        _unmix_kernel,
        (own_programs + batch_programs + 1,),
        cov,
        cov,
        mean,
        *moments_of(measured.own if method.uses_own() else None),
        inner,
        *logits_of(mixing),
        *((None, None) if own is None else own[:2]),
        *((None, None) if batch is None else batch[:2]),
        *logits,
        own_programs=own_programs,
        batch_programs=batch_programs,
        problems=problems,
        groups=groups,
        features=features,
        **places(method),
        STATISTICS=len(method.statistics),
        BLOCK_K=block_features(features),
        BLOCK_ROWS=_ROWS,
        BLOCK_SAMPLES=_SAMPLES,
        BLOCK_MATRICES=_MATRICES,
    )
    return own, batch, logits


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
    own_centre, own = load_moments(own_mean, own_cov, index, k, features, BLOCK_K)
    batch_centre, batch = load_moments(batch_mean, batch_cov, index % groups, k, features, BLOCK_K)
    layer_mean, layer_variance = 0.0, 0.0
    if LN >= 0:
        layer_mean, layer_variance = layer_moments(own_mean, own_cov, index // groups, groups, features, BLOCK_K)
    place = tl.arange(0, PLACES)
    mean_inner = tl.zeros((PLACES,), tl.float32)
    cov_inner = tl.zeros((PLACES,), tl.float32)
    first_mean = statistic_mean(own_centre, batch_centre, layer_mean, k, features, 0, BW, BN, LN)
    first_cov = statistic_cov(own, batch, layer_variance, eye, 0, BW, IW, BN, IN)
    for other in tl.static_range(1, STATISTICS):
        one_mean = statistic_mean(own_centre, batch_centre, layer_mean, k, features, other, BW, BN, LN)
        one_cov = statistic_cov(own, batch, layer_variance, eye, other, BW, IW, BN, IN)
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


@triton.jit(do_not_specialize=["own_programs", "batch_programs", "problems", "groups", "features"])
def _unmix_kernel(
    cov,
    mean,
    own_mean,
    own_cov,
    inner,
    mean_logits,
    cov_logits,
    own_matrix,
    own_offset,
    batch_matrix,
    batch_offset,
    grad_mean_logits,
    grad_cov_logits,
    own_programs,
    batch_programs,
    problems,
    groups,
    features,
    BW: tl.constexpr,
    IW: tl.constexpr,
    BN: tl.constexpr,
    IN: tl.constexpr,
    LN: tl.constexpr,
    STATISTICS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_SAMPLES: tl.constexpr,
    BLOCK_MATRICES: tl.constexpr,
):
    """Grid (N · G + G · blocks of rows + 1): one program for what each sample's group adds to dx, from the gradients of
    all of the sample's groups; one for some rows of what a group of the batch adds, from those of all samples; and one
    for the logits, from all inner products.
    """
    program = tl.program_id(0)
    mean_weights, cov_weights = softmax(mean_logits, STATISTICS), softmax(cov_logits, STATISTICS)
    if program < own_programs:
        if own_matrix is not None:
            _own_part(
                cov, mean, own_mean, own_cov, own_matrix, own_offset, mean_weights, cov_weights,
                program.to(tl.int64), groups, features, IW, IN, LN, BLOCK_K,
            )  # fmt: skip
    elif program < own_programs + batch_programs:
        if batch_matrix is not None:
            _batch_part(
                cov, mean, batch_matrix, batch_offset, mean_weights, cov_weights,
                program - own_programs, problems, groups, features, BW, BN, BLOCK_K, BLOCK_ROWS, BLOCK_SAMPLES,
            )  # fmt: skip
    else:
        matrices = problems * groups
        _logit_gradients(inner, mean_weights, grad_mean_logits, matrices, STATISTICS, BLOCK_MATRICES)
        _logit_gradients(inner + PLACES, cov_weights, grad_cov_logits, matrices, STATISTICS, BLOCK_MATRICES)


@triton.jit
def _own_part(
    cov,
    mean,
    own_mean,
    own_cov,
    own_matrix,
    own_offset,
    mean_weights,
    cov_weights,
    index,
    groups,
    features,
    IW: tl.constexpr,
    IN: tl.constexpr,
    LN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """What one group of one sample adds to dx, as a map from its own mean on."""
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    entries = load_matrix(cov + index * features * features, k, k, features)
    matrix = entries * (weight_at(cov_weights, IW) + weight_at(cov_weights, IN) * eye)
    offset = load_vector(mean + index * features, k, features) * (
        weight_at(mean_weights, IW) + weight_at(mean_weights, IN)
    )
    if LN >= 0:
        channels = groups * features
        sample = index // groups * channels
        through_mean, through_variance = 0.0, 0.0
        for first in range(0, channels, features):
            through_mean += tl.sum(load_vector(mean + sample + first, k, features))
            through_variance += tl.sum(load_diagonal(cov + (sample + first) * features, k, features))
        layer_mean, _ = layer_moments(own_mean, own_cov, index // groups, groups, features, BLOCK_K)
        slope = weight_at(cov_weights, LN) * through_variance / channels
        matrix += slope * eye
        apart = load_vector(own_mean + index * features, k, features) - layer_mean
        offset += weight_at(mean_weights, LN) * through_mean / channels + 2 * slope * apart
    store_matrix(own_matrix + index * features * features, matrix, k, k, features)
    tl.store(own_offset + index * features + k, offset, mask=k < features)


@triton.jit
def _batch_part(
    cov,
    mean,
    batch_matrix,
    batch_offset,
    mean_weights,
    cov_weights,
    program,
    problems,
    groups,
    features,
    BW: tl.constexpr,
    BN: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_SAMPLES: tl.constexpr,
):
    """Some rows of what one group of the batch adds to dx."""
    group = program % groups
    rows = program // groups * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_K)
    matrix = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.float32)
    offset = tl.zeros((BLOCK_ROWS,), tl.float32)
    for first in range(0, problems, BLOCK_SAMPLES):
        sample = first + tl.arange(0, BLOCK_SAMPLES)
        entries = (sample.to(tl.int64) * groups + group)[:, None] * features + rows[None, :]
        mask = (sample < problems)[:, None] & (rows < features)[None, :]
        offset += tl.sum(tl.load(mean + entries, mask=mask, other=0.0), 0)
        mask = mask[:, :, None] & (columns < features)[None, None, :]
        entries = entries[:, :, None] * features + columns[None, None, :]
        matrix += tl.sum(tl.load(cov + entries, mask=mask, other=0.0), 0)
    diagonal = (rows[:, None] == columns[None, :]).to(tl.float32)
    matrix *= weight_at(cov_weights, BW) + weight_at(cov_weights, BN) * diagonal
    offset *= weight_at(mean_weights, BW) + weight_at(mean_weights, BN)
    store_matrix(batch_matrix + group * features * features, matrix, rows, columns, features)
    tl.store(batch_offset + group * features + rows, offset, mask=rows < features)


@triton.jit
def _logit_gradients(inner, weights, grad, matrices, STATISTICS: tl.constexpr, BLOCK_MATRICES: tl.constexpr):
    """Back through the softmax, from the inner products of all matrices."""
    place = tl.arange(0, PLACES)
    total = tl.zeros((PLACES,), tl.float32)
    for first in range(0, matrices, BLOCK_MATRICES):
        index = first + tl.arange(0, BLOCK_MATRICES)
        entries = index[:, None] * (2 * PLACES) + place[None, :]
        total += tl.sum(tl.load(inner + entries, mask=(index < matrices)[:, None], other=0.0), 0)
    tl.store(grad + place, weights * (total - tl.sum(weights * total)), mask=place < STATISTICS)
