"""Host-side planning of the Triton kernels: how ``x[N, G, K, J, P]`` is cut into tiles, and which program gets which.

A *problem* is all the values that share one set of matrices: the whole batch, or one sample. Its positions are counted
by an outer and an inner index, and a tile is ``BLOCK_K`` features by ``BLOCK_OUTER * BLOCK_INNER`` positions. Where γ
and β vary within a feature, one of the two indices counts its channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from whitenorm.ops.launches import record_launch
from whitenorm.ops.triton.tiles import (
    FEATURE_UNIT_STRIDE,
    INNER_CHANNELS,
    NO_CHANNELS,
    NO_UNIT_STRIDE,
    OUTER_CHANNELS,
    POSITION_UNIT_STRIDE,
)

# Positions per tile of the kernels that sum, fewer where channels or six products take registers, and of the kernels
# that map; features per product. Larger ones spill registers.
SUM_POSITIONS = 32
SUM_POSITIONS_OF_CROWDED = 16
MAP_POSITIONS = 64
MAP_POSITIONS_OF_LARGEST = 128
BLOCK_COLUMNS = 16
# Rows of a product per warp. Triton gives more warps the same rows again.
WARP_ROWS = 16
# Most features of a tile; larger matrices are made of several tiles.
LARGEST_BLOCK = 64
# Tiles that a kernel that sums loads ahead, plus one. Channels leave no registers for it.
SUM_STAGES = 3
# Programs that fill a GPU: with fewer matrices than this, several programs share one.
ENOUGH_PROGRAMS = 128
# Programs that fill a GPU evenly.
MANY_PROGRAMS = 512
# Fewest tiles for which a program is worth a matrix of partial sums.
LEAST_TILES = 16
# Most tiles that a program maps.
MOST_TILES = 8
# Most channels of a tile, where channels are neighbours in memory.
LARGEST_CHANNEL_BLOCK = 16

# Most neighbours that a load or store takes at a time: 16 bytes of a 16-bit type.
VECTOR = 8

# Options of every compilation; Triton's own default is about to change.
COMPILE_OPTIONS = {"enable_fp_fusion": True}
# Most plans to keep: those of every layer of a large model at several input sizes.
_MOST_PLANS = 4096

T = TypeVar("T")

# Compiled kernels with their keyword arguments in order, by all that they were compiled for.
_compiled: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}


class Geometry(NamedTuple):
    """Shape, strides, device and dtype of a tensor, on which a plan depends."""

    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


def geometry(tensor: Tensor) -> Geometry:
    return Geometry(tensor.shape, tensor.stride(), tensor.device, tensor.dtype)


@lru_cache(_MOST_PLANS)
def plan(build: Callable[..., T], *arguments: Hashable) -> T:
    """Return ``build(*arguments)``, computed once per function and arguments."""
    return build(*arguments)


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
        return cdiv(self.features, self.block_features)

    @property
    def outer_tiles(self) -> int:
        return cdiv(self.outer, self.block_outer)

    @property
    def inner_tiles(self) -> int:
        return cdiv(self.inner, self.block_inner)

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

    def strides(self, tensor: Geometry, name: str) -> dict[str, Any]:
        """Return a tensor's strides (problem, group, feature, outer, inner), and what is known when compiling.

        The latter is which stride is 1, and a divisor of all others. Triton would compile a kernel anew for a stride
        of 1, so that it is passed as 0, which the kernel does not read.
        """
        problem, group, feature = (0 if tensor.shape[axis] == 1 else tensor.strides[axis] for axis in range(3))
        problem = 0 if self.problems == 1 else problem
        outer = 0 if self.outer_axis is None else tensor.strides[self.outer_axis]
        inner = 0 if self.inner == 1 else tensor.strides[self.inner_axis]
        unit_stride, divisor = NO_UNIT_STRIDE, 1
        if inner == 1:
            unit_stride, inner = POSITION_UNIT_STRIDE, 0
            divisor = math.gcd(VECTOR, problem, group, feature, outer, self.inner)
        elif feature == 1:
            unit_stride, feature = FEATURE_UNIT_STRIDE, 0
            divisor = math.gcd(VECTOR, problem, group, outer, inner, self.features)
        return {
            f"{name}_strides": (problem, group, feature, outer, inner),
            f"{name.upper()}_UNIT_STRIDE": unit_stride.value,
            f"{name.upper()}_DIVISOR": divisor,
        }


class Split(NamedTuple):
    """The tiles of a problem, split among ``programs`` programs of ``chunk`` tiles each."""

    programs: int
    chunk: int


def sum_tiling(tensors: tuple[Geometry, ...], pooled: bool, channels: bool) -> Tiling:
    """Plan the tiles of a kernel that sums over the tensors; see :func:`_tiling`."""
    has_channels = channels and tensors[0].shape[3] > 1
    is_crowded = (has_channels and block_features(tensors[0].shape[2]) >= 32) or _is_rdna(tensors[0].device)
    return _tiling(tensors, pooled, channels, SUM_POSITIONS_OF_CROWDED if is_crowded else SUM_POSITIONS)


def map_tiling(tensors: tuple[Geometry, ...], pooled: bool, channels: bool) -> Tiling:
    """Plan the tiles of a kernel that maps the tensors; see :func:`_tiling`."""
    return _tiling(tensors, pooled, channels, MAP_POSITIONS_OF_LARGEST if _is_largest(tensors) else MAP_POSITIONS)


def _is_largest(tensors: tuple[Geometry, ...]) -> bool:
    return block_features(tensors[0].shape[2]) == LARGEST_BLOCK


def _tiling(tensors: tuple[Geometry, ...], pooled: bool, channels: bool, block_positions: int) -> Tiling:
    """Plan how to walk through tensors ``[N, G, K, J, P]`` together.

    With ``pooled``, all samples are one problem if each feature has one channel. With ``channels``, an index counts the
    channels of a feature if there are several.
    """
    first = tensors[0]
    samples, groups, features, channels_per_feature, _ = first.shape
    channels = channels and channels_per_feature > 1
    position_axes = (3, 4) if channels_per_feature > 1 else (0, 4) if pooled else (4,)
    axes = [axis for axis in position_axes if first.shape[axis] > 1] or [4]
    if axes == [3, 4] and first.strides[3] < first.strides[4]:
        axes = [4, 3]
    inner_axis, outer_axis = axes[-1], axes[0] if len(axes) == 2 else None
    inner, outer = first.shape[inner_axis], 1 if outer_axis is None else first.shape[outer_axis]
    if outer_axis is not None and not channels and all(_can_merge(t, outer_axis, inner_axis) for t in tensors):
        outer_axis, inner, outer = None, inner * outer, 1
    channel_index = NO_CHANNELS if not channels else INNER_CHANNELS if inner_axis == 3 else OUTER_CHANNELS
    most = LARGEST_CHANNEL_BLOCK if channel_index is INNER_CHANNELS and outer > 1 else block_positions
    block_inner = min(most, next_power_of_2(inner))
    # Products need at least 16 positions.
    block_inner, block_outer = (
        (max(16, block_inner), 1) if outer == 1 else (block_inner, block_positions // block_inner)
    )
    return Tiling(
        problems=1 if pooled and channels_per_feature == 1 else samples,
        groups=groups,
        features=features,
        outer=outer,
        inner=inner,
        outer_axis=outer_axis,
        inner_axis=inner_axis,
        channels=channel_index.value,
        block_features=block_features(features),
        block_outer=block_outer,
        block_inner=block_inner,
    )


def _can_merge(tensor: Geometry, outer_axis: int, inner_axis: int) -> bool:
    """Return whether the two axes together are equally spaced, as a single axis."""
    return tensor.strides[outer_axis] == tensor.shape[inner_axis] * tensor.strides[inner_axis]


def block_features(features: int) -> int:
    return max(16, min(LARGEST_BLOCK, next_power_of_2(features)))


def split_sums(tiles: int, programs: int) -> Split:
    """Split sums among few programs per problem, because each writes a matrix of partial sums."""
    if programs >= ENOUGH_PROGRAMS:
        return Split(1, tiles)
    chunk = max(LEAST_TILES, cdiv(tiles * programs, MANY_PROGRAMS))
    return Split(cdiv(tiles, chunk), chunk)


def split_map(tiles: int, programs: int) -> Split:
    """Split a map among many programs per problem, of a few tiles each."""
    chunk = min(MOST_TILES, max(1, tiles * programs // MANY_PROGRAMS))
    return Split(cdiv(tiles, chunk), chunk)


def cdiv(size: int, block: int) -> int:
    """Return the number of blocks that cover a size."""
    return -(-size // block)


def next_power_of_2(size: int) -> int:
    return 1 << (size - 1).bit_length()


def problem_stride(tensor: Tensor | None) -> int:
    """Return the distance between two problems' entries of a contiguous ``(B, G, ...)``, or 0 where all share one."""
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor.numel() // tensor.shape[0]


def sum_options(tiles: Tiling, x: Geometry) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels that sum over x."""
    warps = tiles.block_features // WARP_ROWS
    has_channels = tiles.channels != NO_CHANNELS.value
    if has_channels and tiles.block_features == LARGEST_BLOCK and x.dtype is torch.float32:
        # Twice the products, but with the registers of half the threads they would spill.
        warps *= 2
    stages = 1 if has_channels or _is_rdna(x.device) else SUM_STAGES
    return {"FEATURE_BLOCKS": tiles.feature_blocks, **_options(x.device, x.dtype, warps, stages)}


def map_options(tiles: Tiling, x: Geometry) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels that map x."""
    warps = 8 if tiles.block_features == LARGEST_BLOCK else 4
    return {"BLOCK_COLUMNS": BLOCK_COLUMNS, **_options(x.device, x.dtype, warps, 1)}


def solve_options(features: int, device: torch.device) -> dict[str, Any]:
    """Return the compile-time arguments of the solves, where a tile is a whole matrix."""
    block = block_features(features)
    return {"BLOCK_K": block, **_options(device, torch.float32, block // WARP_ROWS, 1)}


def _options(device: torch.device, dtype: torch.dtype, warps: int, stages: int) -> dict[str, Any]:
    return {"PRECISION": dot_precision(device, dtype), "num_warps": warps, "num_stages": stages}


def dot_precision(device: torch.device, dtype: torch.dtype) -> str:
    """Return how matrices are multiplied: on matrix units where these can, nearly exactly for an input of the dtype.

    Three TF32 products or six bfloat16 products are nearly as accurate as float32, which only some units multiply
    themselves. For 16-bit inputs three bfloat16 products suffice: their error is 2⁻¹⁶, and they take half the time.
    """
    name = architecture(device)
    if not name or (name.startswith("sm_") and int(name.removeprefix("sm_")) < 80):
        return "ieee"
    if dtype is not torch.float32 and _has_bf16x3():
        return "bf16x3"
    if name.startswith("sm_"):
        return "tf32x3"
    return "bf16x6" if _is_rdna(device) and _has_bf16x3() else "ieee"


def _is_rdna(device: torch.device) -> bool:
    """Return whether a GPU is one of AMD's whose matrix units do not multiply float32."""
    return architecture(device).startswith("gfx1")


@cache
def architecture(device: torch.device) -> str:
    """Return the architecture of a GPU, such as sm_80 or gfx942; empty for other devices."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@cache
def _has_bf16x3() -> bool:
    """Return whether this version of Triton has products of bfloat16 parts."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "bf16x3" in CUDAOptions.allowed_dot_input_precisions


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *arguments: Any, **options: Any) -> None:
    """Run a kernel on the device of ``like``, which may not be the current one; on meta, only record the launch.

    Triton takes several times as long to find the code that it compiled for some arguments as to launch it. It is
    therefore kept here, by all that Triton specializes code for: the types, the alignment of pointers, and values.
    """
    record_launch(kernel.fn.__name__, arguments, grid, options)
    if like.is_meta:
        return
    key = kernel, like.device, tuple([_specialization(value) for value in arguments]), *options.values()
    with torch.cuda.device_of(like):
        known = _compiled.get(key)
        if known is not None:
            compiled, rest = known
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
            return
        compiled = kernel[grid](*arguments, **options, **COMPILE_OPTIONS)
    # The interpreter compiles nothing. AMD's code also depends on the size of the memory.
    if compiled is not None and torch.version.hip is None:
        if len(_compiled) >= _MOST_PLANS:
            _compiled.clear()
        _compiled[key] = compiled, tuple([options[name] for name in kernel.arg_names[len(arguments) :]])


def _specialization(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    return float if isinstance(value, float) else value
