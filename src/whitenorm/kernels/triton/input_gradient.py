"""The gradient of the input: back through the map, and through the statistics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.kernels.triton.tiles import (
    NO_CHANNELS,
    group_offset,
    launch,
    load_channels,
    load_matrix,
    load_tile,
    load_vector,
    map_options,
    number_of,
    per_problem,
    split_map,
    store_tile,
    tile_start,
    tiling,
)
from whitenorm.kernels.types import Linear


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    own: Linear | None,
    own_mean: Tensor | None,
    batch: Linear | None,
    batch_mean: Tensor | None,
) -> Tensor:
    """Wᵀ(γ·grad) and what came through the statistics of each sample and of the batch, in memory like x.

    x counts from the samples' means where these take part, otherwise from the batch's.
    """
    pooled = whitening.shape[0] == 1 and own is None
    tiles = tiling((x, grad), pooled, channels=weight is not None)
    split = split_map(tiles.tiles, tiles.matrices * tiles.feature_blocks)
    dx = torch.empty_like(x)
    launch(
        _input_gradient,
        (split.number * tiles.matrices, tiles.feature_blocks),
        x,
        grad,
        x,
        dx,
        whitening.contiguous(),
        None if weight is None else weight.contiguous(),
        *_linear(own, own_mean),
        *_linear(batch, batch_mean),
        matrices=tiles.matrices,
        tiles=tiles.tiles,
        chunk=split.chunk,
        several=x.shape[3],
        whitening_problem=per_problem(whitening),
        **tiles.sizes(),
        **tiles.strides(grad, "grad"),
        **tiles.strides(x, "x"),
        OWN_NUMBER_IS_TENSOR=own is not None and isinstance(own.number, Tensor),
        BATCH_NUMBER_IS_TENSOR=batch is not None and isinstance(batch.number, Tensor),
        **tiles.blocks(),
        **map_options(tiles, x),
    )
    return dx


def _linear(linear: Linear | None, mean: Tensor | None) -> tuple[Tensor | float | None, ...]:
    if linear is None or mean is None:
        return None, None, None, None
    number = linear.number if isinstance(linear.number, Tensor) else float(linear.number)
    return linear.matrix.contiguous(), linear.offset.contiguous(), mean.contiguous(), number


@triton.jit(
    do_not_specialize=[
        "matrices", "tiles", "chunk", "several", "whitening_problem",
        "groups", "features", "outer", "inner", "outer_tiles", "inner_tiles",
        "grad_problem", "grad_group", "grad_feature", "grad_outer", "grad_inner",
        "x_problem", "x_group", "x_feature", "x_outer", "x_inner",
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
    GRAD_NEXT: tl.constexpr,
    GRAD_DIVISOR: tl.constexpr,
    X_NEXT: tl.constexpr,
    X_DIVISOR: tl.constexpr,
    OWN_NUMBER_IS_TENSOR: tl.constexpr,
    BATCH_NUMBER_IS_TENSOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FEATURE_BLOCKS: tl.constexpr,
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
    start_of_group = group_offset(problem, group, x_problem, x_group, X_DIVISOR)
    x += start_of_group
    dx += start_of_group
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

    offset = _offset(
        own_matrix, own_offset, own_mean, own_share, batch_matrix, batch_offset, batch_mean, batch_share,
        rows, features, BLOCK_K, FEATURE_BLOCKS,
    )  # fmt: skip
    if FEATURE_BLOCKS == 1:
        back = _back(whitening, weight, rows, rows, features, CHANNELS)
        through = _through(own_matrix, own_share, batch_matrix, batch_share, rows, rows, features, BLOCK_K)
        centre = _centre(own_mean, batch_mean, rows, features, BLOCK_K)
    for tile in range(split * chunk, tl.minimum(split * chunk + chunk, tiles)):
        start = tile_start(tile, outer_tiles, inner_tiles, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
        total = tl.zeros((BLOCK_K, BLOCK_OUTER * BLOCK_INNER), tl.float32) + offset[:, None]
        for block in range(FEATURE_BLOCKS):
            columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
            if FEATURE_BLOCKS > 1:
                back = _back(whitening, weight, rows, columns, features, CHANNELS)
                through = _through(own_matrix, own_share, batch_matrix, batch_share, rows, columns, features, BLOCK_K)
                centre = _centre(own_mean, batch_mean, columns, features, BLOCK_K)
            values = load_tile(
                grad, columns, start, sizes, grad_strides, BLOCK_OUTER, BLOCK_INNER, GRAD_NEXT, GRAD_DIVISOR
            )
            if CHANNELS != NO_CHANNELS:
                values *= load_channels(weight, columns, start, sizes, several, BLOCK_OUTER, BLOCK_INNER, CHANNELS)
            total = tl.dot(back, values, total, input_precision=PRECISION)
            if own_matrix is not None or batch_matrix is not None:
                values = load_tile(x, columns, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)
                total = tl.dot(through, values - centre[:, None], total, input_precision=PRECISION)
        store_tile(dx, total, rows, start, sizes, x_strides, BLOCK_OUTER, BLOCK_INNER, X_NEXT, X_DIVISOR)


@triton.jit
def _back(whitening, weight, rows, columns, features, CHANNELS: tl.constexpr):
    """A block of Wᵀ, times γ where a feature has one channel."""
    block = tl.trans(load_matrix(whitening, columns, rows, features))
    if weight is not None and CHANNELS == NO_CHANNELS:
        block *= load_vector(weight, columns, features)[None, :]
    return block


@triton.jit
def _through(own_matrix, own_share, batch_matrix, batch_share, rows, columns, features, BLOCK_K: tl.constexpr):
    """A block of the matrix that takes x to what came through both statistics."""
    block = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    if own_matrix is not None:
        block += load_matrix(own_matrix, rows, columns, features) * own_share
    if batch_matrix is not None:
        block += load_matrix(batch_matrix, rows, columns, features) * batch_share
    return block


@triton.jit
def _centre(own_mean, batch_mean, k, features, BLOCK_K: tl.constexpr):
    """What x counts from."""
    if own_mean is not None:
        centre = load_vector(own_mean, k, features)
    elif batch_mean is not None:
        centre = load_vector(batch_mean, k, features)
    else:
        centre = tl.zeros((BLOCK_K,), tl.float32)
    return centre


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
    FEATURE_BLOCKS: tl.constexpr,
):
    """What came through both statistics at the mean x counts from."""
    offset = tl.zeros((BLOCK_K,), tl.float32)
    if own_matrix is not None:
        offset += load_vector(own_offset, rows, features) * own_share
    if batch_matrix is not None:
        offset += load_vector(batch_offset, rows, features) * batch_share
        if own_matrix is not None:
            for block in range(FEATURE_BLOCKS):
                columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
                apart = load_vector(own_mean, columns, features) - load_vector(batch_mean, columns, features)
                entries = load_matrix(batch_matrix, rows, columns, features) * batch_share
                offset += tl.sum(entries * apart[None, :], 1)
    return offset
