"""The whitening itself: one product a tile."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import (
    group_offset,
    launch,
    load_channels,
    load_matrix,
    load_tile,
    load_vector,
    map_options,
    map_tiling,
    per_problem,
    split_map,
    store_tile,
    tile_start,
)


def apply(
    x: Tensor, whitening: Tensor, mean: Tensor | None, weight: Tensor | None, bias: Tensor | None, out: Tensor
) -> Tensor:
    """γ·W(x - mean) + β, written to ``out``; None for a mean or β of zero, or γ of one."""
    pooled = whitening.shape[0] == 1 and (mean is None or mean.shape[0] == 1)
    tiles = map_tiling((x, out), pooled, channels=weight is not None or bias is not None)
    split = split_map(tiles.tiles, tiles.matrices * tiles.feature_blocks)
    launch(
        _apply,
        (split.number * tiles.matrices, tiles.feature_blocks),
        x,
        x,
        out,
        whitening.contiguous(),
        None if mean is None else mean.contiguous(),
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        matrices=tiles.matrices,
        tiles=tiles.tiles,
        chunk=split.chunk,
        several=x.shape[3],
        whitening_problem=per_problem(whitening),
        mean_problem=per_problem(mean),
        **tiles.sizes(),
        **tiles.strides(x, "x"),
        **tiles.strides(out, "y"),
        **tiles.blocks(),
        **map_options(tiles, x),
    )
    return out


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk", "several", "whitening_problem", "mean_problem",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
        "x_problem", "x_group", "x_feature", "x_outer", "x_inner",
        "y_problem", "y_group", "y_feature", "y_outer", "y_inner",
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
    several,
    whitening_problem,
    mean_problem,
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
    y_problem,
    y_group,
    y_feature,
    y_outer,
    y_inner,
    X_NEXT: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    Y_NEXT: tl.constexpr,
    Y_DIVISOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits · problems · G, feature blocks): a chunk of tiles of one group. Reads its matrix (one block of
    rows), mean, γ and β, and the tiles of x, all features of them; writes the tiles of y, one block of features.
    """
    split = tl.program_id(0) // matrices
    problem = (tl.program_id(0) % matrices // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    rows = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    x += group_offset(problem, group, x_problem, x_group, X_DIVISOR)
    y += group_offset(problem, group, y_problem, y_group, Y_DIVISOR)
    whitening += problem * whitening_problem + group * features * features
    if mean is not None:
        mean += problem * mean_problem + group * features
    sizes, strides = (features, outer, inner), (x_feature, x_outer, x_inner)
    y_strides = (y_feature, y_outer, y_inner)

    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32)
        for first_column in range(0, features, BLOCK_COLUMNS):
            columns = first_column + tl.arange(0, BLOCK_COLUMNS)
            values = load_tile(x, columns, start, sizes, strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
            if mean is not None:
                values -= load_vector(mean, columns, features)[:, None]
            matrix = load_matrix(whitening, rows, columns, features)
            total = tl.dot(matrix, values, total, input_precision=PRECISION)
        if weight is not None:
            scale = weight + group * features * several
            total *= load_channels(scale, rows, start, sizes, several, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        if bias is not None:
            shift = bias + group * features * several
            total += load_channels(shift, rows, start, sizes, several, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        store_tile(y, total, rows, start, sizes, y_strides, BLOCK_OUTER, BLOCK_INNER, Y_NEXT, Y_DIVISOR)
