"""From the gradients of mixed statistics to what each sample and the batch add to dx, and to those of the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.mixing import (
    PLACES,
    layer_moments,
    load_diagonal,
    places,
    softmax,
    weight_at,
)
from whitenorm.ops.triton.solve import logits_of, moments_of
from whitenorm.ops.triton.tiles import (
    block_features,
    identity,
    launch,
    load_matrix,
    load_vector,
    store_matrix,
)
from whitenorm.ops.types import AffineGrad, Method, Mixing, Statistics

# Rows of a matrix, and samples at a time, that a program sums.
_ROWS = 4
_SAMPLES = 8
# Matrices at a time whose gradients of the logits are summed.
_MATRICES = 64


def unmix(
    statistics: tuple[Tensor, Tensor],
    measured: Statistics,
    method: Method,
    mixing: Mixing,
    inner: Tensor,
    batch_is_constant: bool,
) -> tuple[AffineGrad | None, AffineGrad | None, Mixing]:
    """From the pooled statistics' gradients to what each sample and the batch add to dx, and to those of the logits."""
    cov, mean = statistics
    problems, groups, features = mean.shape
    own, batch = None, None
    if method.uses_sample and measured.sample is not None:
        own = AffineGrad(
            torch.empty_like(cov), torch.empty_like(mean), measured.sample.mean, measured.sample.num_values
        )
    if method.uses_batch and measured.batch is not None and not batch_is_constant:
        shape = (1, groups, features)
        batch = AffineGrad(
            cov.new_empty(*shape, features), cov.new_empty(shape), measured.batch.mean, measured.batch.num_values
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
        *moments_of(measured.sample if method.uses_sample else None),
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
