"""Device functions that read and write tiles, vectors and matrices; :mod:`.tiling` plans the tiles.

A tile is ``BLOCK_K`` features by ``BLOCK_OUTER * BLOCK_INNER`` positions of ``x[N, G, K, J, P]``. Shapes in comments
abbreviate the latter as ``BLOCK_L``. Strides are tuples (problem, group, feature, outer, inner).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Of float32.
EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)

# Which index of a tile counts channels.
NO_CHANNELS, OUTER_CHANNELS, INNER_CHANNELS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# Which stride is 1.
NO_UNIT_STRIDE, POSITION_UNIT_STRIDE, FEATURE_UNIT_STRIDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def tile_start(
    tile, outer_tiles, inner_tiles, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr, CHANNELS: tl.constexpr
):
    """Return the first outer and inner index of a tile; the tiles of the same channels follow each other."""
    if CHANNELS == INNER_CHANNELS:
        outer_tile, inner_tile = tile % outer_tiles, tile // outer_tiles
    else:
        outer_tile, inner_tile = tile // inner_tiles, tile % inner_tiles
    return outer_tile.to(tl.int64) * BLOCK_OUTER, inner_tile.to(tl.int64) * BLOCK_INNER


@triton.jit
def tile_indices(BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr):
    """Return the outer and inner index of each position within a tile."""
    position = tl.arange(0, BLOCK_OUTER * BLOCK_INNER)  # [BLOCK_L]
    return position // BLOCK_INNER, position % BLOCK_INNER


@triton.jit
def is_inside(start, sizes, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr):
    """Return which positions of a tile exist, ``[BLOCK_L]``."""
    outer, inner = tile_indices(BLOCK_OUTER, BLOCK_INNER)
    return (outer < sizes[1] - start[0]) & (inner < sizes[2] - start[1])


@triton.jit
def tile_offsets(
    k,
    start,
    strides,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Return the offsets of the features k at a tile's positions, from the start of a problem's group."""
    outer, inner = tile_indices(BLOCK_OUTER, BLOCK_INNER)
    rows = k.to(tl.int64)  # [BLOCK_K]
    if UNIT_STRIDE != FEATURE_UNIT_STRIDE:
        rows = rows * as_multiple(strides[2], DIVISOR)
    outer_stride = as_multiple(strides[3], DIVISOR)
    if UNIT_STRIDE == POSITION_UNIT_STRIDE:
        columns = (start[0] * outer_stride + start[1]) + (outer * outer_stride + inner)  # [BLOCK_L]
    else:
        inner_stride = as_multiple(strides[4], DIVISOR)
        columns = (start[0] * outer_stride + start[1] * inner_stride) + (outer * outer_stride + inner * inner_stride)
    return rows[:, None] + columns[None, :]  # [BLOCK_K, BLOCK_L]


@triton.jit
def tile_mask(
    k,
    start,
    sizes,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Return which entries of a tile exist, ``[BLOCK_K, BLOCK_L]``; neighbours that a vector holds all exist or not."""
    features, outer_size, inner_size = sizes[0], sizes[1], sizes[2]
    if UNIT_STRIDE == FEATURE_UNIT_STRIDE:
        features = as_multiple(features, DIVISOR)
    if UNIT_STRIDE == POSITION_UNIT_STRIDE:
        inner_size = as_multiple(inner_size, DIVISOR)
    present = is_inside(start, (features, outer_size, inner_size), BLOCK_OUTER, BLOCK_INNER)
    return (k < features)[:, None] & present[None, :]


@triton.jit
def load_tile(
    x,
    k,
    start,
    sizes,
    strides,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Load the features k at a tile's positions as float32, with zeros outside x: ``[BLOCK_K, BLOCK_L]``.

    ``sizes`` are K and the problem's outer and inner size.
    """
    offsets = tile_offsets(k, start, strides, BLOCK_OUTER, BLOCK_INNER, UNIT_STRIDE, DIVISOR)
    mask = tile_mask(k, start, sizes, BLOCK_OUTER, BLOCK_INNER, UNIT_STRIDE, DIVISOR)
    return tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_tile(
    x,
    values,
    k,
    start,
    sizes,
    strides,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Write a tile as :func:`load_tile` reads it."""
    offsets = tile_offsets(k, start, strides, BLOCK_OUTER, BLOCK_INNER, UNIT_STRIDE, DIVISOR)
    mask = tile_mask(k, start, sizes, BLOCK_OUTER, BLOCK_INNER, UNIT_STRIDE, DIVISOR)
    tl.store(x + offsets, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def as_multiple(stride, DIVISOR: tl.constexpr):
    """Return a stride in 64 bits that the compiler knows to be a multiple of the divisor."""
    # Not stride.to: Triton turns a 1 in a tuple into a constant.
    return tl.multiple_of(tl.cast(stride, tl.int64), DIVISOR)


@triton.jit
def group_offset(problem, group, strides, DIVISOR: tl.constexpr):
    """Return where a problem's group starts."""
    return problem * as_multiple(strides[0], DIVISOR) + group * as_multiple(strides[1], DIVISOR)


@triton.jit
def load_channels(
    vector,
    k,
    start,
    sizes,
    channels_per_feature,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Load the entries of γ or β ``(K, J)`` of a tile: ``[BLOCK_K, BLOCK_L]``, or ``[BLOCK_K, 1]`` without channels."""
    if CHANNELS == NO_CHANNELS:
        values = load_vector(vector, k, sizes[0])[:, None]
    else:
        outer, inner = tile_indices(BLOCK_OUTER, BLOCK_INNER)
        channel = start[0] + outer if CHANNELS == OUTER_CHANNELS else start[1] + inner
        mask = (k < sizes[0])[:, None] & (channel < channels_per_feature)[None, :]
        values = tl.load(vector + k[:, None] * channels_per_feature + channel[None, :], mask=mask, other=0.0)
    return values


@triton.jit
def load_vector(vector, k, features):
    """Load the entries k of K, with zeros outside the vector."""
    return tl.load(vector + k, mask=k < features, other=0.0)


@triton.jit
def load_matrix(matrix, rows, columns, features):
    """Load entries of a K×K matrix, with zeros outside it."""
    mask = (rows < features)[:, None] & (columns < features)[None, :]
    return tl.load(matrix + rows[:, None] * features + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_matrix(matrix, values, rows, columns, features):
    """Write entries as :func:`load_matrix` reads them."""
    mask = (rows < features)[:, None] & (columns < features)[None, :]
    tl.store(matrix + rows[:, None] * features + columns[None, :], values, mask=mask)


@triton.jit
def identity(rows, features):
    """Return the identity on the features that exist, and zero on the others."""
    diagonal = (rows[:, None] == rows[None, :]) & (rows < features)[:, None]
    return diagonal.to(tl.float32)


@triton.jit
def load_scalar(value, IS_TENSOR: tl.constexpr):
    """Load a scalar passed by value or by pointer."""
    if IS_TENSOR:
        value = tl.load(value).to(tl.float32)
    return value
