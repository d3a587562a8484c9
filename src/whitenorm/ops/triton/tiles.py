"""What the Triton kernels share: how ``x[N, G, K, J, P]`` is cut into tiles, who takes which, and how tiles multiply.

A *problem* is all that one matrix sees: the whole batch, or one sample. Its positions are counted by an outer and an
inner index, and a tile is ``BLOCK_K`` features by ``BLOCK_OUTER * BLOCK_INNER`` positions. Where γ and β vary within a
feature, one of the two indices counts its channels.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.launches import note

# Positions of a tile where they are summed over, and where they are mapped; features of one that are multiplied at a
# time. Larger ones spill registers.
SUM_POSITIONS = 32
MAP_POSITIONS = 64
MAP_POSITIONS_OF_LARGEST = 128
BLOCK_COLUMNS = 16
# Features of a tile at most; larger matrices are made of several.
LARGEST_BLOCK = 64
# So many programs fill a card: with fewer matrices than that, several programs share one.
ENOUGH_PROGRAMS = 128
# So many do it evenly.
MANY_PROGRAMS = 512
# Tiles that are worth a matrix of partial sums.
LEAST_TILES = 16
# Tiles that a program maps at most.
MOST_TILES = 8
# Channels of a tile at most, where they are neighbours in memory.
LARGEST_CHANNEL_BLOCK = 16

# How every kernel is compiled; Triton's own default is about to change.
EVERYWHERE = {"enable_fp_fusion": True}

# Of float32.
EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)

# Which index counts channels.
NO_CHANNELS, OUTER_CHANNELS, INNER_CHANNELS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# What is next in memory.
NOTHING_NEXT, POSITION_NEXT, FEATURE_NEXT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class Tiling(NamedTuple):
    """How the positions of each problem are cut into tiles, and along which axes of the tensors they lie."""

    problems: int
    groups: int
    features: int
    outer: int
    inner: int
    outer_axis: int | None
    inner_axis: int
    channels: int
    block_features: int
    block_outer: int
    block_inner: int

    @property
    def matrices(self) -> int:
        return self.problems * self.groups

    @property
    def feature_blocks(self) -> int:
        return triton.cdiv(self.features, self.block_features)

    @property
    def outer_tiles(self) -> int:
        return triton.cdiv(self.outer, self.block_outer)

    @property
    def inner_tiles(self) -> int:
        return triton.cdiv(self.inner, self.block_inner)

    @property
    def tiles(self) -> int:
        return self.outer_tiles * self.inner_tiles

    def sizes(self) -> dict[str, int]:
        return {
            "groups": self.groups,
            "features": self.features,
            "outer": self.outer,
            "inner": self.inner,
            "outer_tiles": self.outer_tiles,
            "inner_tiles": self.inner_tiles,
        }

    def blocks(self) -> dict[str, int]:
        return {
            "BLOCK_K": self.block_features,
            "BLOCK_OUTER": self.block_outer,
            "BLOCK_INNER": self.block_inner,
            "CHANNELS": self.channels,
        }

    def strides(self, tensor: Tensor, name: str) -> dict[str, int]:
        """How the tensor lies in memory: its strides, which of them is one, and what divides the others."""
        problem, group, feature = (0 if tensor.shape[axis] == 1 else tensor.stride(axis) for axis in range(3))
        problem = 0 if self.problems == 1 else problem
        outer = 0 if self.outer_axis is None else tensor.stride(self.outer_axis)
        inner = 0 if self.inner == 1 else tensor.stride(self.inner_axis)
        following, divided = NOTHING_NEXT, [1]
        if inner == 1:
            following, divided = POSITION_NEXT, [problem, group, feature, outer, self.inner]
        elif feature == 1:
            following, divided = FEATURE_NEXT, [problem, group, outer, inner, self.features]
        divisor = math.gcd(16, *divided)
        return {
            f"{name}_problem": problem,
            f"{name}_group": group,
            f"{name}_feature": feature,
            f"{name}_outer": outer,
            f"{name}_inner": inner,
            f"{name.upper()}_NEXT": following.value,
            f"{name.upper()}_DIVISOR": divisor if divisor in (4, 16) else 1,
        }


class Split(NamedTuple):
    """The tiles of a problem given to ``number`` programs, ``chunk`` to each."""

    number: int
    chunk: int


def block_features(features: int) -> int:
    return max(16, min(LARGEST_BLOCK, triton.next_power_of_2(features)))


def sum_tiling(tensors: tuple[Tensor, ...], pooled: bool, channels: bool) -> Tiling:
    """For the kernels that sum over the tensors."""
    return tiling(tensors, pooled, channels, SUM_POSITIONS)


def map_tiling(tensors: tuple[Tensor, ...], pooled: bool, channels: bool) -> Tiling:
    """For the kernels that map them."""
    largest = block_features(tensors[0].shape[2]) == LARGEST_BLOCK
    return tiling(tensors, pooled, channels, MAP_POSITIONS_OF_LARGEST if largest else MAP_POSITIONS)


def tiling(tensors: tuple[Tensor, ...], pooled: bool, channels: bool, block_positions: int) -> Tiling:
    """How tensors ``[N, G, K, J, P]`` are walked through together.

    With ``pooled`` all samples are one problem, if each feature has one channel. With ``channels`` an index is kept for
    these, if there are several.
    """
    first = tensors[0]
    samples, groups, features, several, _ = first.shape
    channels = channels and several > 1
    wanted = (3, 4) if several > 1 else (0, 4) if pooled else (4,)
    axes = [axis for axis in wanted if first.shape[axis] > 1] or [4]
    if axes == [3, 4] and first.stride(3) < first.stride(4):
        axes = [4, 3]
    inner_axis, outer_axis = axes[-1], axes[0] if len(axes) == 2 else None
    inner, outer = first.shape[inner_axis], 1 if outer_axis is None else first.shape[outer_axis]
    if outer_axis is not None and not channels and all(_one_run(t, outer_axis, inner_axis) for t in tensors):
        outer_axis, inner, outer = None, inner * outer, 1
    counted = NO_CHANNELS if not channels else INNER_CHANNELS if inner_axis == 3 else OUTER_CHANNELS
    most = LARGEST_CHANNEL_BLOCK if counted is INNER_CHANNELS and outer > 1 else block_positions
    block_inner = min(most, triton.next_power_of_2(inner))
    # Products want at least 16 positions.
    block_inner, block_outer = (
        (max(16, block_inner), 1) if outer == 1 else (block_inner, block_positions // block_inner)
    )
    return Tiling(
        problems=1 if pooled and several == 1 else samples,
        groups=groups,
        features=features,
        outer=outer,
        inner=inner,
        outer_axis=outer_axis,
        inner_axis=inner_axis,
        channels=counted.value,
        block_features=block_features(features),
        block_outer=block_outer,
        block_inner=block_inner,
    )


def _one_run(tensor: Tensor, outer_axis: int, inner_axis: int) -> bool:
    """Whether the two axes are one, of equally spaced values."""
    return tensor.stride(outer_axis) == tensor.shape[inner_axis] * tensor.stride(inner_axis)


def split_sums(tiles: int, programs: int) -> Split:
    """Few programs for each problem: each leaves a matrix of partial sums, and none are left if there is but one."""
    if programs >= ENOUGH_PROGRAMS:
        return Split(1, tiles)
    chunk = max(LEAST_TILES, triton.cdiv(tiles * programs, MANY_PROGRAMS))
    return Split(triton.cdiv(tiles, chunk), chunk)


def split_map(tiles: int, programs: int) -> Split:
    """Many programs for each problem: each takes a few tiles."""
    chunk = min(MOST_TILES, max(1, tiles * programs // MANY_PROGRAMS))
    return Split(triton.cdiv(tiles, chunk), chunk)


def precision(device: torch.device) -> str:
    """How float32 matrices are multiplied: nearly exactly, on tensor cores where they can."""
    return "tf32x3" if device.type == "cuda" and _has_tf32(device) else "ieee"


@cache
def _has_tf32(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def sum_options(tiles: Tiling, like: Tensor) -> dict[str, Any]:
    """How the kernels that sum over x are compiled."""
    warps = 2 if tiles.block_features == 16 else 8
    return {"FEATURE_BLOCKS": tiles.feature_blocks, **_options(like, warps)}


def map_options(tiles: Tiling, like: Tensor) -> dict[str, Any]:
    """How the kernels that map x are compiled."""
    warps = 8 if tiles.block_features == LARGEST_BLOCK else 4
    return {"BLOCK_COLUMNS": BLOCK_COLUMNS, **_options(like, warps)}


def solve_options(features: int, like: Tensor) -> dict[str, Any]:
    """How the solves are compiled: a whole matrix is a tile."""
    block = block_features(features)
    return {"BLOCK_K": block, **_options(like, 8 if block == LARGEST_BLOCK else 4)}


def _options(like: Tensor, warps: int) -> dict[str, Any]:
    # More stages would take registers that there are not.
    return {"PRECISION": precision(like.device), "num_warps": warps, "num_stages": 1}


def per_problem(tensor: Tensor | None) -> int:
    """How far the tensors ``(B, G, ...)`` of two problems are apart: nothing, where all have the same."""
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor[0].numel()


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *arguments: Any, **options: Any) -> None:
    """Run the kernel on the tensor's device, which need not be the current one; on meta it is only counted."""
    note(kernel.fn.__name__, arguments, grid)
    if not like.is_meta:
        with torch.cuda.device_of(like):
            kernel[grid](*arguments, **options, **EVERYWHERE)


@triton.jit
def tile_start(
    tile, outer_tiles, inner_tiles, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr, CHANNELS: tl.constexpr
):
    """The first outer and inner index of a tile; all tiles of the same channels come one after the other."""
    if CHANNELS == INNER_CHANNELS:
        outer_tile, inner_tile = tile % outer_tiles, tile // outer_tiles
    else:
        outer_tile, inner_tile = tile // inner_tiles, tile % inner_tiles
    return outer_tile.to(tl.int64) * BLOCK_OUTER, inner_tile.to(tl.int64) * BLOCK_INNER


@triton.jit
def lanes(BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr):
    """The outer and inner index of each position within a tile."""
    lane = tl.arange(0, BLOCK_OUTER * BLOCK_INNER)
    return lane // BLOCK_INNER, lane % BLOCK_INNER


@triton.jit
def tile_positions(start, sizes, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr):
    """Which positions of a tile there are."""
    lane_outer, lane_inner = lanes(BLOCK_OUTER, BLOCK_INNER)
    return (lane_outer < sizes[1] - start[0]) & (lane_inner < sizes[2] - start[1])


@triton.jit
def tile_offsets(
    k,
    start,
    strides,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    NEXT: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Where the features k of a tile's positions lie, from the start of a problem's group."""
    lane_outer, lane_inner = lanes(BLOCK_OUTER, BLOCK_INNER)
    rows = k.to(tl.int64)
    if NEXT != FEATURE_NEXT:
        rows = rows * divided(strides[0], DIVISOR)
    outer = divided(strides[1], DIVISOR)
    if NEXT == POSITION_NEXT:
        columns = (start[0] * outer + start[1]) + (lane_outer * outer + lane_inner)
    else:
        inner = divided(strides[2], DIVISOR)
        columns = (start[0] * outer + start[1] * inner) + (lane_outer * outer + lane_inner * inner)
    return rows[:, None] + columns[None, :]


@triton.jit
def load_tile(
    x,
    k,
    start,
    sizes,
    strides,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    NEXT: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """The features k of a tile's positions, in float32, and zeros where there are none.

    ``sizes`` are K and the problem's outer and inner size, ``strides`` those of features, outer and inner index.
    """
    offsets = tile_offsets(k, start, strides, BLOCK_OUTER, BLOCK_INNER, NEXT, DIVISOR)
    mask = (k < sizes[0])[:, None] & tile_positions(start, sizes, BLOCK_OUTER, BLOCK_INNER)[None, :]
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
    NEXT: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    """Write a tile as :func:`load_tile` reads it."""
    offsets = tile_offsets(k, start, strides, BLOCK_OUTER, BLOCK_INNER, NEXT, DIVISOR)
    mask = (k < sizes[0])[:, None] & tile_positions(start, sizes, BLOCK_OUTER, BLOCK_INNER)[None, :]
    tl.store(x + offsets, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def divided(stride, DIVISOR: tl.constexpr):
    """The stride in 64 bits, and known to be a multiple of the divisor."""
    return tl.multiple_of(stride.to(tl.int64), DIVISOR)


@triton.jit
def group_offset(problem, group, stride_problem, stride_group, DIVISOR: tl.constexpr):
    """Where a problem's group starts."""
    return problem * divided(stride_problem, DIVISOR) + group * divided(stride_group, DIVISOR)


@triton.jit
def load_channels(
    vector, k, start, sizes, several, BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr, CHANNELS: tl.constexpr
):
    """Of γ or β ``(K, several)``, what belongs to each value of a tile: ``[K, 1]`` where a feature has one channel."""
    if CHANNELS == NO_CHANNELS:
        values = load_vector(vector, k, sizes[0])[:, None]
    else:
        lane_outer, lane_inner = lanes(BLOCK_OUTER, BLOCK_INNER)
        channel = start[0] + lane_outer if CHANNELS == OUTER_CHANNELS else start[1] + lane_inner
        mask = (k < sizes[0])[:, None] & (channel < several)[None, :]
        values = tl.load(vector + k[:, None] * several + channel[None, :], mask=mask, other=0.0)
    return values


@triton.jit
def load_vector(vector, k, features):
    """Entries k of K, and zeros where there are none."""
    return tl.load(vector + k, mask=k < features, other=0.0)


@triton.jit
def load_matrix(matrix, rows, columns, features):
    """Entries of a K×K matrix, and zeros where there are none."""
    mask = (rows < features)[:, None] & (columns < features)[None, :]
    return tl.load(matrix + rows[:, None] * features + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_matrix(matrix, values, rows, columns, features):
    """Write the entries as :func:`load_matrix` reads them."""
    mask = (rows < features)[:, None] & (columns < features)[None, :]
    tl.store(matrix + rows[:, None] * features + columns[None, :], values, mask=mask)


@triton.jit
def identity(rows, features):
    """I on the features there are, and zero on the others."""
    diagonal = (rows[:, None] == rows[None, :]) & (rows < features)[:, None]
    return diagonal.to(tl.float32)


@triton.jit
def number_of(value, IS_TENSOR: tl.constexpr):
    """A number that is given as it is, or where it lies."""
    if IS_TENSOR:
        value = tl.load(value).to(tl.float32)
    return value
