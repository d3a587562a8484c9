"""The gradient of the input, through the map and through the statistics."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import (
    group_offset,
    load_channels,
    load_matrix,
    load_scalar,
    load_tile,
    load_vector,
    store_tile,
    tile_start,
)
from whitenorm.ops.triton.tiling import (
    Geometry,
    geometry,
    launch,
    map_options,
    map_tiling,
    plan,
    problem_stride,
    split_map,
)
from whitenorm.ops.types import AffineGrad


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    """Compute Wᵀ(γ·grad) plus the gradients through the statistics of each sample and of the batch.

    The sample's mean is subtracted from x if there are statistics of samples, otherwise the batch's.
    """
    out = torch.empty_like(x) if out is None else out
    pooled = whitening.shape[0] == 1 and sample is None
    grid, arguments = plan(_plan_input_gradient, geometry(grad), geometry(x), geometry(out), pooled, weight is not None)
    launch(
        _input_gradient,
        grid,
        x,
        grad,
        x,
        out,
        whitening.contiguous(),
        None if weight is None else weight.contiguous(),
        *_affine_arguments(sample),
        *_affine_arguments(batch),
        whitening_stride=problem_stride(whitening),
        SAMPLE_COUNT_IS_TENSOR=sample is not None and isinstance(sample.num_values, Tensor),
        BATCH_COUNT_IS_TENSOR=batch is not None and isinstance(batch.num_values, Tensor),
        **arguments,
    )
    return out


def _plan_input_gradient(
    grad: Geometry, x: Geometry, out: Geometry, pooled: bool, channels: bool
) -> tuple[tuple[int, ...], dict[str, Any]]:
    tiles = map_tiling((x, grad, out), pooled, channels)
    split = split_map(tiles.tiles, tiles.matrices * tiles.feature_blocks)
    arguments = {
        "matrices": tiles.matrices,
        "tiles": tiles.tiles,
        "chunk": split.chunk,
        "channels_per_feature": x.shape[3],
        **tiles.sizes(),
        **tiles.strides(grad, "grad"),
        **tiles.strides(x, "x"),
        **tiles.strides(out, "dx"),
        **tiles.blocks(),
        **map_options(tiles, x),
    }
    return (split.programs * tiles.matrices, tiles.feature_blocks), arguments


def _affine_arguments(grad: AffineGrad | None) -> tuple[Tensor | float | None, ...]:
    if grad is None:
        return None, None, None, None
    num_values = grad.num_values if isinstance(grad.num_values, Tensor) else float(grad.num_values)
    return grad.matrix.contiguous(), grad.offset.contiguous(), grad.mean.contiguous(), num_values


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk", "channels_per_feature", "whitening_stride",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
    ]
)  # fmt: skip
def _input_gradient(
    grad,
    x,
    dx,
    whitening,
    weight,
    sample_matrix,
    sample_offset,
    sample_mean,
    sample_count,
    batch_matrix,
    batch_offset,
    batch_mean,
    batch_count,
    matrices,
    tiles,
    chunk,
    channels_per_feature,
    whitening_stride,
    groups,
    features,
    outer,
    inner,
    outer_tiles,
    inner_tiles,
    grad_strides,
    x_strides,
    dx_strides,
    GRAD_UNIT_STRIDE: tl.constexpr,
    GRAD_DIVISOR: tl.constexpr,
    X_UNIT_STRIDE: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    DX_UNIT_STRIDE: tl.constexpr,
    DX_DIVISOR: tl.constexpr,
    SAMPLE_COUNT_IS_TENSOR: tl.constexpr,
    BATCH_COUNT_IS_TENSOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dx for a chunk of tiles of one group.

    Grid: (splits · problems · G, feature blocks). A program reads one block of columns of the group's W, one block of
    rows of the matrices that map x, their means and offsets, γ, and all features of its tiles of grad and x. It writes
    one block of features of these tiles of dx.
    """
    split = tl.program_id(0) // matrices
    problem = (tl.program_id(0) % matrices // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    sample_group = problem * groups + group
    rows = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    grad += group_offset(problem, group, grad_strides, GRAD_DIVISOR)
    x += group_offset(problem, group, x_strides, X_DIVISOR)
    dx += group_offset(problem, group, dx_strides, DX_DIVISOR)
    whitening += problem * whitening_stride + group * features * features
    if weight is not None:
        weight += group * features * channels_per_feature
    sample_share, batch_share = 0.0, 0.0
    if sample_matrix is not None:
        sample_matrix += sample_group * features * features
        sample_offset += sample_group * features
        sample_mean += sample_group * features
        sample_share = 1 / load_scalar(sample_count, SAMPLE_COUNT_IS_TENSOR)
    if batch_matrix is not None:
        batch_matrix += group * features * features
        batch_offset += group * features
        batch_mean += group * features
        batch_share = 1 / load_scalar(batch_count, BATCH_COUNT_IS_TENSOR)
    sizes = (features, outer, inner)

    offset = _offset_of_statistics(
        sample_matrix, sample_offset, sample_mean, sample_share, batch_matrix, batch_offset, batch_mean, batch_share,
        rows, features, BLOCK_K, BLOCK_COLUMNS,
    )  # fmt: skip
    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32) + offset[:, None]
        for first_column in range(0, features, BLOCK_COLUMNS):
            columns = first_column + tl.arange(0, BLOCK_COLUMNS)
            values = load_tile(
                grad, columns, start, sizes, grad_strides, BLOCK_OUTER, BLOCK_INNER, GRAD_UNIT_STRIDE, GRAD_DIVISOR
            )  # [BLOCK_COLUMNS, BLOCK_L]
            if weight is not None:
                values *= load_channels(
                    weight, columns, start, sizes, channels_per_feature, BLOCK_OUTER, BLOCK_INNER, CHANNELS
                )
            matrix = tl.trans(load_matrix(whitening, columns, rows, features))  # [BLOCK_K, BLOCK_COLUMNS]
            total = tl.dot(matrix, values, total, input_precision=PRECISION)  # [BLOCK_K, BLOCK_L]
            if sample_matrix is not None or batch_matrix is not None:
                values = load_tile(
                    x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR
                )
                values -= load_vector(batch_mean if sample_mean is None else sample_mean, columns, features)[:, None]
                matrix = _matrix_of_statistics(
                    sample_matrix, sample_share, batch_matrix, batch_share, rows, columns, features
                )
                total = tl.dot(matrix, values, total, input_precision=PRECISION)
        store_tile(dx, total, rows, start, sizes, dx_strides, BLOCK_OUTER, BLOCK_INNER, DX_UNIT_STRIDE, DX_DIVISOR)


@triton.jit
def _matrix_of_statistics(sample_matrix, sample_share, batch_matrix, batch_share, rows, columns, features):
    """Return a block of the matrix that maps x to the gradient through both statistics."""
    if sample_matrix is None:
        block = load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
    else:
        block = load_matrix(sample_matrix, rows, columns, features) * (2 * sample_share)
        if batch_matrix is not None:
            block += load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
    return block


@triton.jit
def _offset_of_statistics(
    sample_matrix,
    sample_offset,
    sample_mean,
    sample_share,
    batch_matrix,
    batch_offset,
    batch_mean,
    batch_share,
    rows,
    features,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Return the gradient through both statistics at the mean that is subtracted from x, ``[BLOCK_K]``."""
    offset = tl.zeros((BLOCK_K,), tl.float32)
    if sample_matrix is not None:
        offset += load_vector(sample_offset, rows, features) * sample_share
    if batch_matrix is not None:
        offset += load_vector(batch_offset, rows, features) * batch_share
        if sample_matrix is not None:
            for first_column in range(0, features, BLOCK_COLUMNS):
                columns = first_column + tl.arange(0, BLOCK_COLUMNS)
                difference = load_vector(sample_mean, columns, features) - load_vector(batch_mean, columns, features)
                entries = load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
                offset += tl.sum(entries * difference[None, :], 1)
    return offset
