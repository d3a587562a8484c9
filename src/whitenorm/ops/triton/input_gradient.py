"""The gradient of the input: back through the map, and through the statistics."""

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
    number_of,
    per_problem,
    split_map,
    store_tile,
    tile_start,
)
from whitenorm.ops.types import AffineGrad


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    own: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor,
) -> Tensor:
    """Wᵀ(γ·grad) and what came through the statistics of each sample and of the batch, written to ``out``.

    x counts from the samples' means where these take part, otherwise from the batch's.
    """
    pooled = whitening.shape[0] == 1 and own is None
    tiles = map_tiling((x, grad, out), pooled, channels=weight is not None)
    split = split_map(tiles.tiles, tiles.matrices * tiles.feature_blocks)
    launch(
        _input_gradient,
        (split.number * tiles.matrices, tiles.feature_blocks),
        x,
        grad,
        x,
        out,
        whitening.contiguous(),
        None if weight is None else weight.contiguous(),
        *_linear(own),
        *_linear(batch),
        matrices=tiles.matrices,
        tiles=tiles.tiles,
        chunk=split.chunk,
        several=x.shape[3],
        whitening_problem=per_problem(whitening),
        **tiles.sizes(),
        **tiles.strides(grad, "grad"),
        **tiles.strides(x, "x"),
        **tiles.strides(out, "dx"),
        OWN_NUMBER_IS_TENSOR=own is not None and isinstance(own.num_values, Tensor),
        BATCH_NUMBER_IS_TENSOR=batch is not None and isinstance(batch.num_values, Tensor),
        **tiles.blocks(),
        **map_options(tiles, x),
    )
    return out


def _linear(linear: AffineGrad | None) -> tuple[Tensor | float | None, ...]:
    if linear is None:
        return None, None, None, None
    number = linear.num_values if isinstance(linear.num_values, Tensor) else float(linear.num_values)
    return linear.matrix.contiguous(), linear.offset.contiguous(), linear.mean.contiguous(), number


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk", "several", "whitening_problem",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
        "grad_problem", "grad_group", "grad_feature", "grad_outer", "grad_inner",
        "x_problem", "x_group", "x_feature", "x_outer", "x_inner",
        "dx_problem", "dx_group", "dx_feature", "dx_outer", "dx_inner",
    ]
)  # fmt: skip
def _input_gradient(
    grad,
    x,
    dx,
    whitening,
    weight,
    own_matrix,
    own_offset,
    own_mean,
    own_number,
    batch_matrix,
    batch_offset,
    batch_mean,
    batch_number,
    matrices,
    tiles,
    chunk,
    several,
    whitening_problem,
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
    dx_problem,
    dx_group,
    dx_feature,
    dx_outer,
    dx_inner,
    GRAD_NEXT: tl.constexpr,
    GRAD_DIVISOR: tl.constexpr,
    X_NEXT: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    DX_NEXT: tl.constexpr,
    DX_DIVISOR: tl.constexpr,
    OWN_NUMBER_IS_TENSOR: tl.constexpr,
    BATCH_NUMBER_IS_TENSOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits · problems · G, feature blocks): a chunk of tiles of one group. Reads its matrices (W's block of
    columns, the others' block of rows), means, offsets and γ, and the tiles of grad and x, all features of them; writes
    the tiles of dx, one block of features.
    """
    split = tl.program_id(0) // matrices
    problem = (tl.program_id(0) % matrices // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    sample = problem * groups + group
    rows = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    grad += group_offset(problem, group, grad_problem, grad_group, GRAD_DIVISOR)
    x += group_offset(problem, group, x_problem, x_group, X_DIVISOR)
    dx += group_offset(problem, group, dx_problem, dx_group, DX_DIVISOR)
    whitening += problem * whitening_problem + group * features * features
    if weight is not None:
        weight += group * features * several
    own_share, batch_share = 0.0, 0.0
    if own_matrix is not None:
        own_matrix += sample * features * features
        own_offset += sample * features
        own_mean += sample * features
        own_share = 1 / number_of(own_number, OWN_NUMBER_IS_TENSOR)
    if batch_matrix is not None:
        batch_matrix += group * features * features
        batch_offset += group * features
        batch_mean += group * features
        batch_share = 1 / number_of(batch_number, BATCH_NUMBER_IS_TENSOR)
    sizes = (features, outer, inner)
    grad_strides, x_strides = (grad_feature, grad_outer, grad_inner), (x_feature, x_outer, x_inner)
    dx_strides = (dx_feature, dx_outer, dx_inner)

    offset = _offset(
        own_matrix, own_offset, own_mean, own_share, batch_matrix, batch_offset, batch_mean, batch_share,
        rows, features, BLOCK_K, BLOCK_COLUMNS,
    )  # fmt: skip
    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32) + offset[:, None]
        for first_column in range(0, features, BLOCK_COLUMNS):
            columns = first_column + tl.arange(0, BLOCK_COLUMNS)
            values = load_tile(
                grad, columns, start, sizes, grad_strides, BLOCK_OUTER, BLOCK_INNER, GRAD_NEXT, GRAD_DIVISOR
            )
            if weight is not None:
                values *= load_channels(weight, columns, start, sizes, several, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
            matrix = tl.trans(load_matrix(whitening, columns, rows, features))
            total = tl.dot(matrix, values, total, input_precision=PRECISION)
            if own_matrix is not None or batch_matrix is not None:
                values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
                values -= load_vector(batch_mean if own_mean is None else own_mean, columns, features)[:, None]
                matrix = _through(own_matrix, own_share, batch_matrix, batch_share, rows, columns, features)
                total = tl.dot(matrix, values, total, input_precision=PRECISION)
        store_tile(dx, total, rows, start, sizes, dx_strides, BLOCK_OUTER, BLOCK_INNER, DX_NEXT, DX_DIVISOR)


@triton.jit
def _through(own_matrix, own_share, batch_matrix, batch_share, rows, columns, features):
    """A block of the matrix that takes x to what came through both statistics."""
    if own_matrix is None:
        block = load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
    else:
        block = load_matrix(own_matrix, rows, columns, features) * (2 * own_share)
        if batch_matrix is not None:
            block += load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
    return block


@triton.jit
def _offset(
    own_matrix,
    own_offset,
    own_mean,
    own_share,
    batch_matrix,
    batch_offset,
    batch_mean,
    batch_share,
    rows,
    features,
    BLOCK_K: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """What came through both statistics at the mean x counts from."""
    offset = tl.zeros((BLOCK_K,), tl.float32)
    if own_matrix is not None:
        offset += load_vector(own_offset, rows, features) * own_share
    if batch_matrix is not None:
        offset += load_vector(batch_offset, rows, features) * batch_share
        if own_matrix is not None:
            for first_column in range(0, features, BLOCK_COLUMNS):
                columns = first_column + tl.arange(0, BLOCK_COLUMNS)
                apart = load_vector(own_mean, columns, features) - load_vector(batch_mean, columns, features)
                entries = load_matrix(batch_matrix, rows, columns, features) * (2 * batch_share)
                offset += tl.sum(entries * apart[None, :], 1)
    return offset
