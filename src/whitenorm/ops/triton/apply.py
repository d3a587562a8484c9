"""The map y = γ·W(x - μ) + β."""

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


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Compute γ·W(x - mean) + β; None means a mean or β of zero, or a γ of one."""
    out = torch.empty_like(x) if out is None else out
    pooled = whitening.shape[0] == 1 and (mean is None or mean.shape[0] == 1)
    grid, arguments = plan(_plan_apply, geometry(x), geometry(out), pooled, weight is not None or bias is not None)
    launch(
        _apply,
        grid,
        x,
        x,
        out,
        whitening.contiguous(),
        None if mean is None else mean.contiguous(),
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        whitening_stride=problem_stride(whitening),
        mean_stride=problem_stride(mean),
        **arguments,
    )
    return out


def _plan_apply(x: Geometry, out: Geometry, pooled: bool, channels: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    tiles = map_tiling((x, out), pooled, channels)
    split = split_map(tiles.tiles, tiles.matrices * tiles.feature_blocks)
    arguments = {
        "matrices": tiles.matrices,
        "tiles": tiles.tiles,
        "chunk": split.chunk,
        "channels_per_feature": x.shape[3],
        **tiles.sizes(),
        **tiles.strides(x, "x"),
        **tiles.strides(out, "y"),
        **tiles.blocks(),
        **map_options(tiles, x),
    }
    return (split.programs * tiles.matrices, tiles.feature_blocks), arguments


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk", "channels_per_feature", "whitening_stride", "mean_stride",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
    ]
)  # fmt: skip
def _apply(
    x,
    y,
    whitening,
    mean,
    weight,
    bias,
    matrices,
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
    x_strides,
    y_strides,
    X_UNIT_STRIDE: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    Y_UNIT_STRIDE: tl.constexpr,
    Y_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Map a chunk of tiles of one group.

    Grid: (splits · problems · G, feature blocks). A program reads one block of rows of the group's matrix, its mean, γ
    and β, and all features of its tiles of x. It writes one block of features of these tiles of y.
    """
    split = tl.program_id(0) // matrices
    problem = (tl.program_id(0) % matrices // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    rows = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    x += group_offset(problem, group, x_strides, X_DIVISOR)
    y += group_offset(problem, group, y_strides, Y_DIVISOR)
    whitening += problem * whitening_stride + group * features * features
    if mean is not None:
        mean += problem * mean_stride + group * features
    sizes = (features, outer, inner)

    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32)
        for first_column in range(0, features, BLOCK_COLUMNS):
            columns = first_column + tl.arange(0, BLOCK_COLUMNS)
            values = load_tile(
                x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_UNIT_STRIDE, X_DIVISOR
            )  # [BLOCK_COLUMNS, BLOCK_L]
            if mean is not None:
                values -= load_vector(mean, columns, features)[:, None]
            matrix = load_matrix(whitening, rows, columns, features)  # [BLOCK_K, BLOCK_COLUMNS]
            total = tl.dot(matrix, values, total, input_precision=PRECISION)  # [BLOCK_K, BLOCK_L]
        if weight is not None:
            scale = weight + group * features * channels_per_feature
            total *= load_channels(scale, rows, start, sizes, channels_per_feature, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        if bias is not None:
            shift = bias + group * features * channels_per_feature
            total += load_channels(shift, rows, start, sizes, channels_per_feature, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        store_tile(y, total, rows, start, sizes, y_strides, BLOCK_OUTER, BLOCK_INNER, Y_UNIT_STRIDE, Y_DIVISOR)
