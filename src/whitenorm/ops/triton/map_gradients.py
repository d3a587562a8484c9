"""Gradients of the map y = A(x - μ) + b, and of γ and β where these come after the map."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import (
    INNER_CHANNELS,
    NO_CHANNELS,
    OUTER_CHANNELS,
    group_offset,
    is_inside,
    load_channels,
    load_matrix,
    load_tile,
    load_vector,
    store_matrix,
    tile_start,
)
from whitenorm.ops.triton.tiling import (
    BLOCK_COLUMNS,
    Geometry,
    Split,
    Tiling,
    cdiv,
    geometry,
    launch,
    plan,
    problem_stride,
    split_sums,
    sum_options,
    sum_tiling,
)
from whitenorm.ops.types import MapGradients


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    """Compute the gradients of A and b in y = A(x - mean) + b.

    Where a feature has several channels, A is W, and γ and β, if given, have gradients of their own.
    """
    total, channel_sums = sum_gradients(grad, x, whitening, mean, weight, bias is not None)
    return split_gradients(total, channel_sums, whitening, bias)


def sum_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, has_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of A and b in one vector, and the sums of each sample and channel for γ and β."""
    samples, groups, features, channels_per_feature, _ = x.shape
    matrices = whitening.shape[0]
    has_channels = channels_per_feature > 1 and (weight is not None or has_bias)
    tiles, split, grid, arguments = plan(_plan_map_gradients, geometry(grad), geometry(x), matrices == 1, has_channels)
    # Partial sums of each program: the matrices first, then the offsets.
    parts = split.programs * tiles.problems // matrices
    sums = x.new_empty(parts, matrices * groups * features * (features + 1), dtype=torch.float32)
    has_weight = channels_per_feature > 1 and weight is not None
    shape = (2 if has_weight else 1, samples, features, channels_per_feature)
    channel_sums = x.new_empty(shape, dtype=torch.float32) if has_channels else None
    launch(
        _map_gradients,
        grid,
        x,
        grad,
        x,
        whitening.contiguous() if has_weight else None,
        mean.contiguous(),
        weight.contiguous() if weight is not None and has_weight else None,
        sums,
        channel_sums,
        sums_matrices=matrices * groups,
        whitening_stride=problem_stride(whitening),
        mean_stride=problem_stride(mean),
        **arguments,
    )
    return sums[0] if parts == 1 else sums.sum(0), channel_sums


def split_gradients(total: Tensor, channel_sums: Tensor | None, whitening: Tensor, bias: Tensor | None) -> MapGradients:
    """Return the results of :func:`sum_gradients` by name."""
    matrices, groups, features, _ = whitening.shape
    matrix, offset = total.split([matrices * groups * features * features, matrices * groups * features])
    return MapGradients(
        matrix.view(matrices, groups, features, features),
        offset.view(matrices, groups, features),
        *_channel_gradients(channel_sums, bias),
    )


def _plan_map_gradients(
    grad: Geometry, x: Geometry, pooled: bool, channels: bool
) -> tuple[Tiling, Split, tuple[int, ...], dict[str, Any]]:
    tiles = sum_tiling((x, grad), pooled, channels)
    split = _split_at_channels(tiles)
    arguments = {
        "matrices": tiles.matrices,
        "tiles": tiles.tiles,
        "chunk": split.chunk,
        "channels_per_feature": x.shape[3],
        **tiles.sizes(),
        **tiles.strides(grad, "grad"),
        **tiles.strides(x, "x"),
        **tiles.blocks(),
        "BLOCK_COLUMNS": BLOCK_COLUMNS,
        **sum_options(tiles, x),
    }
    return tiles, split, (split.programs * tiles.matrices, tiles.feature_blocks**2), arguments


def _split_at_channels(tiles: Tiling) -> Split:
    """Split the sums into chunks of whole channels, so that each sum over a channel stays in one program."""
    split = split_sums(tiles.tiles, tiles.matrices * tiles.feature_blocks**2)
    if split.programs == 1 or tiles.channels == NO_CHANNELS.value:
        return split
    tiles_per_channel = tiles.outer_tiles if tiles.channels == INNER_CHANNELS.value else tiles.inner_tiles
    chunk = cdiv(split.chunk, tiles_per_channel) * tiles_per_channel
    return Split(cdiv(tiles.tiles, chunk), chunk)


def _channel_gradients(channel_sums: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients ``(1, K, J)`` of γ and β from the sums of each sample, of which β's are the first."""
    if channel_sums is None:
        return None, None
    total = channel_sums.sum(1)
    return total[1:] if len(total) == 2 else None, None if bias is None else total[:1]


@triton.jit(
    do_not_specialize=[
        "matrices", "sums_matrices", "tiles", "chunk", "channels_per_feature", "whitening_stride", "mean_stride",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
    ]
)  # fmt: skip
def _map_gradients(
    grad,
    x,
    whitening,
    mean,
    weight,
    sums,
    channel_sums,
    matrices,
    sums_matrices,
    tiles,
    chunk,
    channels_per_feature,
    whitening_stride,
    mean_stride,
    groups,
    features,
    outer,
    inner,
    outer_tiles,
    inner_tiles,
    grad_strides,
    x_strides,
    GRAD_UNIT_STRIDE: tl.constexpr,
    GRAD_DIVISOR: tl.constexpr,
    X_UNIT_STRIDE: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    FEATURE_BLOCKS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum grad·(x - mean)ᵀ and grad over a chunk of tiles of one group, for one block of its matrix.

    Grid: (splits · problems · G, feature blocks²). A program reads its tiles of grad (the rows of the block) and x (its
    columns), the mean, and W and γ where γ comes after W. It writes its part of the block and of the offset, and the
    sums over each sample and channel for γ and β.
    """
    split = tl.program_id(0) // matrices
    matrix = tl.program_id(0) % matrices
    problem = (matrix // groups).to(tl.int64)
    group = matrix % groups
    column_block = tl.program_id(1) % FEATURE_BLOCKS
    rows = tl.program_id(1) // FEATURE_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    columns = column_block * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    grad += group_offset(problem, group, grad_strides, GRAD_DIVISOR)
    x += group_offset(problem, group, x_strides, X_DIVISOR)
    mean += problem * mean_stride + group * features
    centre = load_vector(mean, columns, features)
    if weight is not None:
        whitening += problem * whitening_stride
    sizes = (features, outer, inner)
    tiles_per_channel = outer_tiles if CHANNELS == INNER_CHANNELS else inner_tiles

    products = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    offset = tl.zeros((BLOCK_K,), tl.float32)
    if CHANNELS != NO_CHANNELS:
        BLOCK_CHANNELS: tl.constexpr = BLOCK_OUTER if CHANNELS == OUTER_CHANNELS else BLOCK_INNER
        bias_sums = tl.zeros((BLOCK_K, BLOCK_CHANNELS), tl.float32)
        weight_sums = tl.zeros((BLOCK_K, BLOCK_CHANNELS), tl.float32)
    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        if weight is not None:
            y = _map_tile(
                x, whitening, mean, rows, start, sizes, x_strides,
                BLOCK_K, BLOCK_COLUMNS, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR, PRECISION,
            )  # fmt: skip
        grads = load_tile(
            grad, rows, start, sizes, grad_strides, BLOCK_OUTER, BLOCK_INNER, GRAD_UNIT_STRIDE, GRAD_DIVISOR
        )  # [BLOCK_K, BLOCK_L]
        if CHANNELS != NO_CHANNELS:
            is_same_channel = tile % tiles_per_channel > 0
            sums_of_tile = _sum_channels(grads, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
            bias_sums = tl.where(is_same_channel, bias_sums, 0.0) + sums_of_tile
            if weight is not None:
                sums_of_tile = _sum_channels(y * grads, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
                weight_sums = tl.where(is_same_channel, weight_sums, 0.0) + sums_of_tile
                grads *= load_channels(
                    weight, rows, start, sizes, channels_per_feature, BLOCK_OUTER, BLOCK_INNER, CHANNELS
                )
            if column_block == 0 and tile % tiles_per_channel == tiles_per_channel - 1:
                first_channel = start[0] if CHANNELS == OUTER_CHANNELS else start[1]
                channel = first_channel + tl.arange(0, BLOCK_CHANNELS)
                mask = (rows < features)[:, None] & (channel < channels_per_feature)[None, :]
                entries = (problem * features + rows)[:, None] * channels_per_feature + channel[None, :]
                tl.store(channel_sums + entries, bias_sums, mask=mask)
                if weight is not None:
                    all_samples = matrices.to(tl.int64) * features * channels_per_feature
                    tl.store(channel_sums + all_samples + entries, weight_sums, mask=mask)
        values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR)
        present = is_inside(start, sizes, BLOCK_OUTER, BLOCK_INNER)
        values = tl.where(present[None, :], values - centre[:, None], 0.0)
        offset += tl.sum(grads, 1)
        products = tl.dot(grads, tl.trans(values), products, input_precision=PRECISION)  # [BLOCK_K, BLOCK_K]

    part = (tl.program_id(0) // sums_matrices).to(tl.int64)
    sums += part * sums_matrices * features * (features + 1)
    index = (tl.program_id(0) % sums_matrices).to(tl.int64)
    store_matrix(sums + index * features * features, products, rows, columns, features)
    if column_block == 0:
        offsets = sums + sums_matrices.to(tl.int64) * features * features + index * features
        tl.store(offsets + rows, offset, mask=rows < features)


@triton.jit
def _map_tile(
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
    UNIT_STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return one block of features of a tile of W(x - mean), ``[BLOCK_K, BLOCK_L]``."""
    total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32)
    for first in range(0, sizes[0], BLOCK_COLUMNS):
        columns = first + tl.arange(0, BLOCK_COLUMNS)
        values = load_tile(x, columns, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, UNIT_STRIDE, DIVISOR)
        values -= load_vector(mean, columns, sizes[0])[:, None]
        matrix = load_matrix(whitening, rows, columns, sizes[0])
        total = tl.dot(matrix, values, total, input_precision=PRECISION)
    return total


@triton.jit
def _sum_channels(values, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr, CHANNELS: tl.constexpr):
    """Sum a tile over the positions of each channel: ``[BLOCK_K, BLOCK_CHANNELS]``."""
    split = values.reshape((values.shape[0], BLOCK_OUTER, BLOCK_INNER))
    return tl.sum(split, 2 if CHANNELS == OUTER_CHANNELS else 1)
