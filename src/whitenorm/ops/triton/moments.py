"""Mean and covariance of each sample and of the batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import (
    group_offset,
    launch,
    load_tile,
    load_vector,
    split_sums,
    store_matrix,
    sum_options,
    sum_tiling,
    tile_positions,
    tile_start,
)
from whitenorm.ops.types import Moments, Statistics

# Rows of a covariance, and parts at a time, that a program joins.
_ROWS = 4
_PARTS = 8


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    """The moments of each sample and of the batch, as asked for; the batch's come from the samples' if both are."""
    samples, *_, channels, positions = x.shape
    if not sample and channels == 1:
        return Statistics(None, _moments(x, pooled=True))
    each = _moments(x, pooled=False)
    if not batch:
        return Statistics(each, None)
    mean, cov = _join(each.mean[:, None], each.cov[:, None], None)
    return Statistics(each if sample else None, Moments(mean, cov, samples * channels * positions))


def _moments(x: Tensor, pooled: bool) -> Moments:
    tiles = sum_tiling((x,), pooled, channels=False)
    split = split_sums(tiles.tiles, tiles.matrices * tiles.feature_blocks**2)
    shape = (split.number, tiles.problems, tiles.groups, tiles.features)
    mean = x.new_empty(shape, dtype=torch.float32)
    cov = x.new_empty((*shape, tiles.features), dtype=torch.float32)
    number = x.new_empty(split.number, dtype=torch.float32)
    launch(
        _partial_moments,
        (split.number * tiles.matrices, tiles.feature_blocks**2),
        x,
        x,
        mean,
        cov,
        number,
        matrices=tiles.matrices,
        tiles=tiles.tiles,
        chunk=split.chunk,
        **tiles.sizes(),
        **tiles.strides(x, "x"),
        **tiles.blocks(),
        **sum_options(tiles, x),
    )
    values = tiles.outer * tiles.inner
    if split.number == 1:
        return Moments(mean[0], cov[0], values)
    return Moments(*_join(mean, cov, number), values)


def _join(mean: Tensor, cov: Tensor, number: Tensor | None) -> tuple[Tensor, Tensor]:
    """Moments ``(B, G, K)`` and ``(B, G, K, K)`` of parts ``(S, B, G, ...)`` together; of equal ones without number."""
    parts, problems, groups, features = mean.shape
    mean, cov = mean.contiguous(), cov.contiguous()
    joined = torch.empty_like(mean[0]), torch.empty_like(cov[0])
    launch(
        _join_moments,
        (problems * groups, triton.cdiv(features, _ROWS)),
        mean,
        mean,
        cov,
        number,
        *joined,
        parts=parts,
        matrices=problems * groups,
        features=features,
        BLOCK_K=triton.next_power_of_2(features),
        BLOCK_ROWS=_ROWS,
        BLOCK_PARTS=max(1, min(_PARTS, 512 // triton.next_power_of_2(features))),
    )
    return joined


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
        "x_problem", "x_group", "x_feature", "x_outer", "x_inner",
    ]
)  # fmt: skip
def _partial_moments(
    x,
    mean,
    cov,
    number,
    matrices,
    tiles,
    chunk,
    groups,
    features,
    outer,
    inner,
    outer_tiles,
    inner_tiles,
    x_problem,
    x_group,
    x_feature,
    x_outer,
    x_inner,
    X_NEXT: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FEATURE_BLOCKS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits · problems · G, feature blocks²): moments of one group over a chunk of tiles, for one block of its
    covariance. Reads these tiles of x, the first of them twice; writes the block, its mean, and the number of values.

    Values are counted from the first tile's mean, so that an offset does not drown the covariance.
    """
    split = tl.program_id(0) // matrices
    matrix = tl.program_id(0) % matrices
    rows = tl.program_id(1) // FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
    columns = tl.program_id(1) % FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
    x += group_offset(matrix // groups, matrix % groups, x_problem, x_group, X_DIVISOR)
    first, last = split * chunk, tl.minimum(split * chunk + chunk, tiles)

    sizes, strides = (features, outer, inner), (x_feature, x_outer, x_inner)

    start = tile_start(first, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
    present = tile_positions(start, sizes, BLOCK_OUTER, BLOCK_INNER)
    values = load_tile(x, rows, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
    row_shift = tl.sum(values, 1) / tl.sum(present.to(tl.float32))
    column_shift = row_shift
    if FEATURE_BLOCKS > 1:
        values = load_tile(x, columns, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
        column_shift = tl.sum(values, 1) / tl.sum(present.to(tl.float32))

    row_sum = tl.zeros((BLOCK_K,), tl.float32)
    column_sum = tl.zeros((BLOCK_K,), tl.float32)
    products = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    count = 0.0
    for tile in range(first, last):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        present = tile_positions(start, sizes, BLOCK_OUTER, BLOCK_INNER)
        values = load_tile(x, rows, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
        left = tl.where(present[None, :], values - row_shift[:, None], 0.0)
        right = left
        if FEATURE_BLOCKS > 1:
            values = load_tile(x, columns, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
            right = tl.where(present[None, :], values - column_shift[:, None], 0.0)
        row_sum += tl.sum(left, 1)
        column_sum += tl.sum(right, 1)
        products = tl.dot(left, tl.trans(right), products, input_precision=PRECISION)
        count += tl.sum(present.to(tl.float32))

    row_mean, column_mean = row_sum / count, column_sum / count
    part = tl.program_id(0).to(tl.int64) * features
    store_matrix(
        cov + part * features, products / count - row_mean[:, None] * column_mean[None, :], rows, columns, features
    )
    if tl.program_id(1) % FEATURE_BLOCKS == 0:
        tl.store(mean + part + rows, row_shift + row_mean, mask=rows < features)
    if tl.program_id(0) % matrices + tl.program_id(1) == 0:
        tl.store(number + split, count)


@triton.jit(do_not_specialize=["parts", "matrices", "features"])
def _join_moments(
    mean,
    cov,
    number,
    joined_mean,
    joined_cov,
    parts,
    matrices,
    features,
    BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """Grid (problems · G, blocks of rows): reads these rows of all parts' covariances and their means, and writes the
    rows and the mean of the parts together: what is within the parts, and between their means.
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
        part = first + tl.arange(0, BLOCK_PARTS)
        weight = _weights(number, part, parts)
        row_mean += tl.sum(
            weight[:, None] * (_part_means(mean, part, matrix, rows, parts, matrices, features) - row_shift), 0
        )
        column_mean += tl.sum(
            weight[:, None] * (_part_means(mean, part, matrix, columns, parts, matrices, features) - column_shift), 0
        )
        total += tl.sum(weight)
    row_mean = row_shift + row_mean / total
    column_mean = column_shift + column_mean / total

    joined = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.float32)
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)
        weight = _weights(number, part, parts)
        row = _part_means(mean, part, matrix, rows, parts, matrices, features) - row_mean
        column = _part_means(mean, part, matrix, columns, parts, matrices, features) - column_mean
        entries = (part.to(tl.int64) * matrices + matrix)[:, None, None] * features + rows[None, :, None]
        mask = (part < parts)[:, None, None] & (rows < features)[None, :, None] & (columns < features)[None, None, :]
        within = tl.load(cov + entries * features + columns[None, None, :], mask=mask, other=0.0)
        joined += tl.sum(weight[:, None, None] * (within + row[:, :, None] * column[:, None, :]), 0)
    store_matrix(joined_cov + matrix * features * features, joined / total, rows, columns, features)
    tl.store(joined_mean + matrix * features + rows, row_mean, mask=rows < features)


@triton.jit
def _weights(number, part, parts):
    """How much each part counts, and zero for those there are not."""
    present = part < parts
    return present.to(tl.float32) if number is None else tl.load(number + part, mask=present, other=0.0)


@triton.jit
def _part_means(mean, part, matrix, k, parts, matrices, features):
    mask = (part < parts)[:, None] & (k < features)[None, :]
    return tl.load(
        mean + (part.to(tl.int64) * matrices + matrix)[:, None] * features + k[None, :], mask=mask, other=0.0
    )
