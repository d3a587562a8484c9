"""Means and covariances of each sample and of the batch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import group_offset, is_inside, load_tile, load_vector, store_matrix, tile_start
from whitenorm.ops.triton.tiling import (
    Geometry,
    Split,
    Tiling,
    cdiv,
    geometry,
    launch,
    next_power_of_2,
    plan,
    split_sums,
    sum_options,
    sum_tiling,
)
from whitenorm.ops.types import Moments, Statistics

# Rows of a covariance that a program combines, and parts that it loads at a time.
_ROWS = 4
_PARTS = 8


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    """Compute the moments of each sample and of the batch, as far as requested; see :class:`MomentsStep`."""
    samples, *_, channels, positions = x.shape
    if not sample and channels == 1:
        return Statistics(None, _moments(x, pooled=True))
    per_sample = _moments(x, pooled=False)
    if not batch:
        return Statistics(per_sample, None)
    mean, cov = _combine(per_sample.mean[:, None], per_sample.cov[:, None], None)
    return Statistics(per_sample if sample else None, Moments(mean, cov, samples * channels * positions))


def _moments(x: Tensor, pooled: bool) -> Moments:
    tiles, split, grid, arguments = plan(_plan_moments, geometry(x), pooled)
    shape = (split.programs, tiles.problems, tiles.groups, tiles.features)
    mean = x.new_empty(shape, dtype=torch.float32)
    cov = x.new_empty((*shape, tiles.features), dtype=torch.float32)
    counts = x.new_empty(split.programs, dtype=torch.float32)
    launch(
        _partial_moments,
        grid,
        x,
        x,
        mean,
        cov,
        counts,
        **arguments,
    )
    num_values = tiles.outer * tiles.inner
    if split.programs == 1:
        return Moments(mean[0], cov[0], num_values)
    return Moments(*_combine(mean, cov, counts), num_values)


def _plan_moments(x: Geometry, pooled: bool) -> tuple[Tiling, Split, tuple[int, ...], dict[str, Any]]:
    tiles = sum_tiling((x,), pooled, channels=False)
    split = split_sums(tiles.tiles, tiles.matrices * tiles.feature_blocks**2)
    arguments = {
        "matrices": tiles.matrices,
        "tiles": tiles.tiles,
        "chunk": split.chunk,
        **tiles.sizes(),
        **tiles.strides(x, "x"),
        **tiles.blocks(),
        **sum_options(tiles, x),
    }
    return tiles, split, (split.programs * tiles.matrices, tiles.feature_blocks**2), arguments


def _combine(mean: Tensor, cov: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the moments ``(B, G, K)`` and ``(B, G, K, K)`` of all parts ``(S, B, G, ...)`` together.

    ``counts`` are the parts' numbers of values; None where these are equal.
    """
    parts, problems, groups, features = mean.shape
    mean, cov = mean.contiguous(), cov.contiguous()
    combined = torch.empty_like(mean[0]), torch.empty_like(cov[0])
    launch(
        _combine_moments,
        (problems * groups, cdiv(features, _ROWS)),
        mean,
        mean,
        cov,
        counts,
        *combined,
        parts=parts,
        matrices=problems * groups,
        features=features,
        BLOCK_K=next_power_of_2(features),
        BLOCK_ROWS=_ROWS,
        BLOCK_PARTS=max(1, min(_PARTS, 512 // next_power_of_2(features))),
    )
    return combined


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
    ]
)  # fmt: skip
def _partial_moments(
    x,
    mean,
    cov,
    counts,
    matrices,
    tiles,
    chunk,
    groups,
    features,
    outer,
    inner,
    outer_tiles,
    inner_tiles,
    x_strides,
    X_UNIT_STRIDE: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FEATURE_BLOCKS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute one block of a group's covariance over a chunk of tiles.

    Grid: (splits · problems · G, feature blocks²). A program reads its tiles of x, the first of them twice. It writes
    the block, its mean, and the number of values.

    The mean of the first tile is subtracted before summing, so that the covariance survives a large offset.
    """
    split = tl.program_id(0) // matrices
    matrix = tl.program_id(0) % matrices
    rows = tl.program_id(1) // FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    columns = tl.program_id(1) % FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    x += group_offset(matrix // groups, matrix % groups, x_strides, X_DIVISOR)
    first, last = split * chunk, tl.minimum(split * chunk + chunk, tiles)

    sizes = (features, outer, inner)

    start = tile_start(first, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
    present = is_inside(start, sizes, BLOCK_OUTER, BLOCK_INNER)
    values = load_tile(x, rows, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR)
    row_shift = tl.sum(values, 1) / tl.sum(present.to(tl.float32))
    column_shift = row_shift
    if FEATURE_BLOCKS > 1:
        values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR)
        column_shift = tl.sum(values, 1) / tl.sum(present.to(tl.float32))

    row_sum = tl.zeros((BLOCK_K,), tl.float32)
    column_sum = tl.zeros((BLOCK_K,), tl.float32)
    products = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    count = 0.0
    for tile in range(first, last):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        present = is_inside(start, sizes, BLOCK_OUTER, BLOCK_INNER)
        values = load_tile(x, rows, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR)
        left = tl.where(present[None, :], values - row_shift[:, None], 0.0)  # [BLOCK_K, BLOCK_L]
        right = left
        if FEATURE_BLOCKS > 1:
            values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR)
            right = tl.where(present[None, :], values - column_shift[:, None], 0.0)
        row_sum += tl.sum(left, 1)
        column_sum += tl.sum(right, 1)
        products = tl.dot(left, tl.trans(right), products, input_precision=PRECISION)  # [BLOCK_K, BLOCK_K]
        count += tl.sum(present.to(tl.float32))

    row_mean, column_mean = row_sum / count, column_sum / count
    part = tl.program_id(0).to(tl.int64) * features
    store_matrix(
        cov + part * features, products / count - row_mean[:, None] * column_mean[None, :], rows, columns, features
    )
    if tl.program_id(1) % FEATURE_BLOCKS == 0:
        tl.store(mean + part + rows, row_shift + row_mean, mask=rows < features)
    if tl.program_id(0) % matrices + tl.program_id(1) == 0:
        tl.store(counts + split, count)


@triton.jit(do_not_specialize=["parts", "matrices", "features"])
def _combine_moments(
    mean,
    cov,
    counts,
    combined_mean,
    combined_cov,
    parts,
    matrices,
    features,
    BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """Combine the moments of several parts: the covariance within the parts plus that of their means.

    Grid: (problems · G, blocks of rows). A program reads the means and its rows of the covariances of all parts. It
    writes these rows of the combined covariance and their mean.
    """
    matrix = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_K)
    row_shift = load_vector(mean + matrix * features, rows, features)
    column_shift = load_vector(mean + matrix * features, columns, features)

    row_mean = tl.zeros((BLOCK_ROWS,), tl.float32)
    column_mean = tl.zeros((BLOCK_K,), tl.float32)
    total = 0.0
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)  # [BLOCK_PARTS]
        weight = _part_weights(counts, part, parts)
        row_mean += tl.sum(
            weight[:, None] * (_part_means(mean, part, matrix, rows, parts, matrices, features) - row_shift), 0
        )
        column_mean += tl.sum(
            weight[:, None] * (_part_means(mean, part, matrix, columns, parts, matrices, features) - column_shift), 0
        )
        total += tl.sum(weight)
    row_mean = row_shift + row_mean / total
    column_mean = column_shift + column_mean / total

    total_cov = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.float32)
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)  # [BLOCK_PARTS]
        weight = _part_weights(counts, part, parts)
        row = _part_means(mean, part, matrix, rows, parts, matrices, features) - row_mean  # [BLOCK_PARTS, BLOCK_ROWS]
        column = _part_means(mean, part, matrix, columns, parts, matrices, features) - column_mean
        # [BLOCK_PARTS, BLOCK_ROWS, BLOCK_K]
        entries = (part.to(tl.int64) * matrices + matrix)[:, None, None] * features + rows[None, :, None]
        mask = (part < parts)[:, None, None] & (rows < features)[None, :, None] & (columns < features)[None, None, :]
        within = tl.load(cov + entries * features + columns[None, None, :], mask=mask, other=0.0)
        total_cov += tl.sum(weight[:, None, None] * (within + row[:, :, None] * column[:, None, :]), 0)
    store_matrix(combined_cov + matrix * features * features, total_cov / total, rows, columns, features)
    tl.store(combined_mean + matrix * features + rows, row_mean, mask=rows < features)


@triton.jit
def _part_weights(counts, part, parts):
    """Return the weights of parts, zero for indices past the last part."""
    present = part < parts
    return present.to(tl.float32) if counts is None else tl.load(counts + part, mask=present, other=0.0)


@triton.jit
def _part_means(mean, part, matrix, k, parts, matrices, features):
    mask = (part < parts)[:, None] & (k < features)[None, :]
    return tl.load(
        mean + (part.to(tl.int64) * matrices + matrix)[:, None] * features + k[None, :], mask=mask, other=0.0
    )
