"""Backward of the mix of statistics: gradients of each sample's statistics, of the batch's, and of the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.mixing import (
    BLOCK_LOGITS,
    layer_moments,
    load_diagonal,
    softmax,
    statistic_indices,
    weight_at,
)
from whitenorm.ops.triton.solve import logit_arguments, moment_arguments
from whitenorm.ops.triton.tiles import identity, load_matrix, load_vector, store_matrix
from whitenorm.ops.triton.tiling import block_features, cdiv, launch, plan
from whitenorm.ops.types import AffineGrad, Method, Mixing, Statistics

# Rows of a matrix that a program sums over samples, and samples that it loads at a time.
_ROWS = 4
_SAMPLES = 8
# Matrices whose parts of the logits' gradients are loaded at a time.
_MATRICES = 64


def mixing_backward(
    pooled: tuple[Tensor, Tensor],
    statistics: Statistics,
    method: Method,
    mixing: Mixing,
    inner: Tensor,
    batch_is_constant: bool,
) -> tuple[AffineGrad | None, AffineGrad | None, Mixing]:
    """Compute the gradients through the statistics of each sample and of the batch, and those of the logits.

    ``pooled`` are the gradients of the pooled covariance and mean, ``inner`` the inner products that the solve's
    backward left.
    """
    cov, mean = pooled
    problems, groups, features = mean.shape
    sample, batch = None, None
    if method.uses_sample and statistics.sample is not None:
        sample = AffineGrad(
            torch.empty_like(cov), torch.empty_like(mean), statistics.sample.mean, statistics.sample.num_values
        )
    if method.uses_batch and statistics.batch is not None and not batch_is_constant:
        shape = (1, groups, features)
        batch = AffineGrad(
            cov.new_empty(*shape, features), cov.new_empty(shape), statistics.batch.mean, statistics.batch.num_values
        )
    logits = Mixing(*(part.new_empty(part.shape) for part in mixing))
    row_blocks = cdiv(features, _ROWS)
    sample_programs = 0 if sample is None else problems * groups
    batch_programs = 0 if batch is None else groups * row_blocks
    launch(
        _mixing_backward,
        (sample_programs + batch_programs + 1,),
        cov,
        cov,
        mean,
        *moment_arguments(statistics.sample if method.uses_sample else None),
        inner,
        *logit_arguments(mixing),
        *((None, None) if sample is None else sample[:2]),
        *((None, None) if batch is None else batch[:2]),
        *logits,
        sample_programs=sample_programs,
        batch_programs=batch_programs,
        problems=problems,
        groups=groups,
        features=features,
        **plan(statistic_indices, method.statistics),
        BLOCK_K=block_features(features),
        BLOCK_ROWS=_ROWS,
        BLOCK_SAMPLES=_SAMPLES,
        BLOCK_MATRICES=_MATRICES,
    )
    return sample, batch, logits


@triton.jit(do_not_specialize=["sample_programs", "batch_programs", "problems", "groups", "features"])
def _mixing_backward(
    cov,
    mean,
    sample_mean,
    sample_cov,
    inner,
    mean_logits,
    cov_logits,
    sample_matrix,
    sample_offset,
    batch_matrix,
    batch_offset,
    grad_mean_logits,
    grad_cov_logits,
    sample_programs,
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
    """Compute the gradients of all samples' statistics, of the batch's, and of the logits.

    Grid: (N · G + G · blocks of rows + 1). The first programs handle one group of one sample each: they read the
    gradients of all groups of the sample and write its matrix and offset. The next handle some rows of one group of the
    batch: they read the gradients of all samples. The last reads all inner products and writes the logits' gradients.
    """
    program = tl.program_id(0)
    mean_weights, cov_weights = softmax(mean_logits, STATISTICS), softmax(cov_logits, STATISTICS)
    if program < sample_programs:
        if sample_matrix is not None:
            _sample_part(
                cov, mean, sample_mean, sample_cov, sample_matrix, sample_offset, mean_weights, cov_weights,
                program.to(tl.int64), groups, features, IW, IN, LN, BLOCK_K,
            )  # fmt: skip
    elif program < sample_programs + batch_programs:
        if batch_matrix is not None:
            _batch_part(
                cov, mean, batch_matrix, batch_offset, mean_weights, cov_weights,
                program - sample_programs, problems, groups, features, BW, BN, BLOCK_K, BLOCK_ROWS, BLOCK_SAMPLES,
            )  # fmt: skip
    else:
        matrices = problems * groups
        _logit_gradients(inner, mean_weights, grad_mean_logits, matrices, STATISTICS, BLOCK_MATRICES)
        _logit_gradients(inner + BLOCK_LOGITS, cov_weights, grad_cov_logits, matrices, STATISTICS, BLOCK_MATRICES)


@triton.jit
def _sample_part(
    cov,
    mean,
    sample_mean,
    sample_cov,
    sample_matrix,
    sample_offset,
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
    """Compute the gradient through the statistics of one group of one sample."""
    k = tl.arange(0, BLOCK_K)
    eye = identity(k, features)
    entries = load_matrix(cov + index * features * features, k, k, features)
    matrix = entries * (weight_at(cov_weights, IW) + weight_at(cov_weights, IN) * eye)
    offset = load_vector(mean + index * features, k, features) * (
        weight_at(mean_weights, IW) + weight_at(mean_weights, IN)
    )
    if LN >= 0:
        channels = groups * features
        first_channel = index // groups * channels
        grad_mean, grad_variance = 0.0, 0.0
        for first in range(0, channels, features):
            grad_mean += tl.sum(load_vector(mean + first_channel + first, k, features))
            grad_variance += tl.sum(load_diagonal(cov + (first_channel + first) * features, k, features))
        layer_mean, _ = layer_moments(sample_mean, sample_cov, index // groups, groups, features, BLOCK_K)
        slope = weight_at(cov_weights, LN) * grad_variance / channels
        matrix += slope * eye
        difference = load_vector(sample_mean + index * features, k, features) - layer_mean
        offset += weight_at(mean_weights, LN) * grad_mean / channels + 2 * slope * difference
    store_matrix(sample_matrix + index * features * features, matrix, k, k, features)
    tl.store(sample_offset + index * features + k, offset, mask=k < features)


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
    """Compute some rows of the gradient through the statistics of one group of the batch."""
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
        # [BLOCK_SAMPLES, BLOCK_ROWS, BLOCK_K]
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
    """Compute the gradient of logits through their softmax, from the inner products of all matrices."""
    logit = tl.arange(0, BLOCK_LOGITS)
    total = tl.zeros((BLOCK_LOGITS,), tl.float32)
    for first in range(0, matrices, BLOCK_MATRICES):
        index = first + tl.arange(0, BLOCK_MATRICES)
        entries = index[:, None] * (2 * BLOCK_LOGITS) + logit[None, :]  # [BLOCK_MATRICES, BLOCK_LOGITS]
        total += tl.sum(tl.load(inner + entries, mask=(index < matrices)[:, None], other=0.0), 0)
    tl.store(grad + logit, weights * (total - tl.sum(weights * total)), mask=logit < STATISTICS)
