"""The gradients of the map: of its matrix and offset, and of γ and β where these come after it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import (
    BLOCK_COLUMNS,
    INNER_CHANNELS,
    NO_CHANNELS,
    OUTER_CHANNELS,
    Split,
    Tiling,
    group_offset,
    launch,
    load_channels,
    load_matrix,
    load_tile,
    load_vector,
    per_problem,
    split_sums,
    store_matrix,
    sum_options,
    sum_tiling,
    tile_positions,
    tile_start,
)
from whitenorm.ops.types import MapGradients


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """From grad to the gradients of A and b in y = A(x - mean) + b.

    Where a feature has several channels, A is W, and those of γ and β that there are have gradients of their own.
    """
    samples, groups, features, several, _ = x.shape
    matrices = whitening.shape[0]
    after = several > 1 and (weight is not None or bias is not None)
    tiles = sum_tiling((x, grad), pooled=matrices == 1, channels=after)
    split = _split(tiles)
    # What each program leaves: the matrices first, then the offsets.
    parts = split.number * tiles.problems // matrices
    sums = x.new_empty(parts, matrices * groups * features * (features + 1), dtype=torch.float32)
    scaled = several > 1 and weight is not None
    shape = (2 if scaled else 1, samples, features, several)
    channels = x.new_empty(shape, dtype=torch.float32) if after else None
    launch(
        _map_gradients,
        (split.number * tiles.matrices, tiles.feature_blocks**2),
        x,
        grad,
        x,
        whitening.contiguous() if scaled else None,
        mean.contiguous(),
        weight.contiguous() if weight is not None and scaled else None,
        sums,
        channels,
        matrices=tiles.matrices,
        sums_matrices=matrices * groups,
        tiles=tiles.tiles,
        chunk=split.chunk,
        several=several,
        whitening_problem=per_problem(whitening),
        mean_problem=per_problem(mean),
        **tiles.sizes(),
        **tiles.strides(grad, "grad"),
        **tiles.strides(x, "x"),
        **tiles.blocks(),
        BLOCK_COLUMNS=BLOCK_COLUMNS,
        **sum_options(tiles, x),
    )
    total = sums[0] if parts == 1 else sums.sum(0)
    matrix, offset = total.split([matrices * groups * features * features, matrices * groups * features])
    return MapGradients(
        matrix.view(matrices, groups, features, features),
        offset.view(matrices, groups, features),
        *_channel_gradients(channels, bias),
    )


def _split(tiles: Tiling) -> Split:
    """Chunks of whole channels: their sums are not split."""
    number, chunk = split_sums(tiles.tiles, tiles.matrices * tiles.feature_blocks**2)
    if number == 1 or tiles.channels == NO_CHANNELS.value:
        return Split(number, chunk)
    each = tiles.outer_tiles if tiles.channels == INNER_CHANNELS.value else tiles.inner_tiles
    chunk = triton.cdiv(chunk, each) * each
    return Split(triton.cdiv(tiles.tiles, chunk), chunk)


def _channel_gradients(channels: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Of γ and β ``(1, K, J)``, from the sums over each sample, β's first; None where there are none."""
    if channels is None:
        return None, None
    total = channels.sum(1)
    return total[1:] if len(total) == 2 else None, None if bias is None else total[:1]


@triton.jit(
    do_not_specialize=[
        "matrices", "sums_matrices", "tiles", "chunk", "several", "whitening_problem", "mean_problem",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
        "grad_problem", "grad_group", "grad_feature", "grad_outer", "grad_inner",
        "x_problem", "x_group", "x_feature", "x_outer", "x_inner",
    ]
)  # fmt: skip
def _map_gradients(
    grad,
    x,
    whitening,
    mean,
    weight,
    sums,
    channels,
    matrices,
    sums_matrices,
    tiles,
    chunk,
    several,
    whitening_problem,
    mean_problem,
    groups,
    features,
    outer,
    inner,
    outer_tiles,
    inner_tiles,
    grad_problem,
    grad_group,
    grad_feature,
    grad_outer,
    grad_inner,
    x_problem,
    x_group,
    x_feature,
    x_outer,
    x_inner,
    GRAD_NEXT: tl.constexpr,
    GRAD_DIVISOR: tl.constexpr,
    X_NEXT: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    FEATURE_BLOCKS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits · problems · G, feature blocks²): a chunk of tiles of one group, for one block of its matrix. Reads
    the tiles of grad (the block's rows) and x (its columns), the mean, and W and γ where γ comes after W; writes its
    part of the block and of the offset, and the sums over each sample and channel for γ and β.
    """
    split = tl.program_id(0) // matrices
    matrix = tl.program_id(0) % matrices
    problem = (matrix // groups).to(tl.int64)
    group = matrix % groups
    column_block = tl.program_id(1) % FEATURE_BLOCKS
    rows = tl.program_id(1) // FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
    columns = column_block * BLOCK_K + tl.arange(0, BLOCK_K)
    grad += group_offset(problem, group, grad_problem, grad_group, GRAD_DIVISOR)
    x += group_offset(problem, group, x_problem, x_group, X_DIVISOR)
    mean += problem * mean_problem + group * features
    centre = load_vector(mean, columns, features)
    if weight is not None:
        whitening += problem * whitening_problem
    sizes = (features, outer, inner)
    grad_strides, x_strides = (grad_feature, grad_outer, grad_inner), (x_feature, x_outer, x_inner)
    tiles_each = outer_tiles if CHANNELS == INNER_CHANNELS else inner_tiles

    products = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    offset = tl.zeros((BLOCK_K,), tl.float32)
    if CHANNELS != NO_CHANNELS:
        BLOCK_CHANNELS: tl.constexpr = BLOCK_OUTER if CHANNELS == OUTER_CHANNELS else BLOCK_INNER
        bias_sums = tl.zeros((BLOCK_K, BLOCK_CHANNELS), tl.float32)
        weight_sums = tl.zeros((BLOCK_K, BLOCK_CHANNELS), tl.float32)
    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        if weight is not None:
            mapped = _mapped(
                x, whitening, mean, rows, start, sizes, x_strides,
                BLOCK_K, BLOCK_COLUMNS, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR, PRECISION,
            )  # fmt: skip
        grads = load_tile(grad, rows, start, sizes, grad_strides, BLOCK_OUTER, BLOCK_INNER, GRAD_NEXT, GRAD_DIVISOR)
        if CHANNELS != NO_CHANNELS:
            again = tile % tiles_each > 0
            bias_sums = tl.where(again, bias_sums, 0.0) + _over_channel(grads, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
            if weight is not None:
                mapped = _over_channel(mapped * grads, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
                weight_sums = tl.where(again, weight_sums, 0.0) + mapped
                grads *= load_channels(weight, rows, start, sizes, several, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
            if column_block == 0 and tile % tiles_each == tiles_each - 1:
                first_channel = start[0] if CHANNELS == OUTER_CHANNELS else start[1]
                channel = first_channel + tl.arange(0, BLOCK_CHANNELS)
                mask = (rows < features)[:, None] & (channel < several)[None, :]
                entries = (problem * features + rows)[:, None] * several + channel[None, :]
                tl.store(channels + entries, bias_sums, mask=mask)
                if weight is not None:
                    all_samples = matrices.to(tl.int64) * features * several
                    tl.store(channels + all_samples + entries, weight_sums, mask=mask)
        values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
        present = tile_positions(start, sizes, BLOCK_OUTER, BLOCK_INNER)
        values = tl.where(present[None, :], values - centre[:, None], 0.0)
        offset += tl.sum(grads, 1)
        products = tl.dot(grads, tl.trans(values), products, input_precision=PRECISION)

    part = (tl.program_id(0) // sums_matrices).to(tl.int64)
    sums += part * sums_matrices * features * (features + 1)
    index = (tl.program_id(0) % sums_matrices).to(tl.int64)
    store_matrix(sums + index * features * features, products, rows, columns, features)
    if column_block == 0:
        offsets = sums + sums_matrices.to(tl.int64) * features * features + index * features
        tl.store(offsets + rows, offset, mask=rows < features)


@triton.jit
def _mapped(
    x,
    whitening,
    mean,
    rows,
    start,
    sizes,
    strides,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    NEXT: tl.constexpr,
    DIVISOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of W(x - mean), one block of its features."""
    mapped = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32)
    for first in range(0, sizes[0], BLOCK_COLUMNS):
        columns = first + tl.arange(0, BLOCK_COLUMNS)
        values = load_tile(x, columns, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, NEXT, DIVISOR)
        values -= load_vector(mean, columns, sizes[0])[:, None]
        matrix = load_matrix(whitening, rows, columns, sizes[0])
        mapped = tl.dot(matrix, values, mapped, input_precision=PRECISION)
    return mapped


@triton.jit
def _over_channel(values, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr, CHANNELS: tl.constexpr):
    """Sums over the positions of each channel of a tile."""
    split = values.reshape((values.shape[0], BLOCK_OUTER, BLOCK_INNER))
    return tl.sum(split, 2 if CHANNELS == OUTER_CHANNELS else 1)
