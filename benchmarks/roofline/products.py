"""FLOPs of the matrix products that a Triton kernel issues, from the arguments of its launch.

Padding counts, because a tile of 64 features is multiplied as a whole whatever K is, and so do products that several
warps repeat: Triton cuts a tile into 16 rows per warp, and with more warps than that they compute the same rows. A test
compares the counts with the products that run in Triton's interpreter.
"""

from __future__ import annotations

import math
from typing import Any

from whitenorm.ops.launches import Launch

_ROWS_PER_WARP = 16
# Products of K×K matrices per step of Newton's iteration after the first.
_NEWTON = {"_solve": 3, "_newton_backward_kernel": 7}
_NEWTON_OF_SAMPLES = {"whiten_samples_kernel": 3, "differentiate_samples_kernel": 7}


def count_flops(launch: Launch) -> int:
    """Return the FLOPs of a launch's products, with padding, each counted as often as warps compute it."""
    return count_distinct_flops(launch) * _count_repetitions(launch.options)


def count_distinct_flops(launch: Launch) -> int:
    """Return the FLOPs of a launch's products, with padding."""
    options = launch.options
    if launch.kernel in _NEWTON:
        steps = max(0, options["steps"] - 1)
        # Backward needs no Z after the last step.
        is_backward = launch.kernel == "_newton_backward_kernel"
        products = _NEWTON[launch.kernel] * steps - (is_backward and steps > 0)
        return 2 * options["BLOCK_K"] ** 3 * products * options["matrices"]
    if launch.kernel in _NEWTON_OF_SAMPLES:
        return _count_samples(launch)
    if "BLOCK_OUTER" not in options:
        return 0
    block, tile = options["BLOCK_K"], options["BLOCK_OUTER"] * options["BLOCK_INNER"]
    tiles = options["tiles"] * options["matrices"] * math.ceil(options["features"] / block)
    if "FEATURE_BLOCKS" in options:
        # A block of a K×K matrix; the kernel that sums grad·xᵀ also computes W·x where γ comes after W.
        columns = block
        if launch.kernel == "_map_gradients" and _has_channel_weight(launch):
            columns += _pad(options["features"], options["BLOCK_COLUMNS"])
        return 2 * block * tile * columns * tiles * options["FEATURE_BLOCKS"]
    products = 1 if launch.kernel == "_apply" else _count_maps(launch)
    return 2 * block * tile * _pad(options["features"], options["BLOCK_COLUMNS"]) * products * tiles


def _count_repetitions(options: dict[str, Any]) -> int:
    rows = options.get("BLOCK_K", options.get("ROWS", _ROWS_PER_WARP))
    return max(1, options.get("num_warps", 1) * _ROWS_PER_WARP // rows)


def _count_samples(launch: Launch) -> int:
    options = launch.options
    rows, columns, steps = options["ROWS"], options["COLUMNS"], options["STEPS"]
    is_backward = launch.kernel == "differentiate_samples_kernel"
    # x·xᵀ and W·x; backward also grad·xᵀ, the second map of dx and, for dγ, W·x.
    maps = 2
    if is_backward:
        maps = 5 if launch.tensors[2].ndim == 3 else 4
    newton = 2 * rows**3 * _NEWTON_OF_SAMPLES[launch.kernel] * max(0, steps - 1)
    return launch.tensors[0].shape[0] * (2 * rows**2 * columns * maps + newton)


def _has_channel_weight(launch: Launch) -> bool:
    """Return whether W and γ, which are matrices and vectors, are among the tensors beside grad, x, mean and sums."""
    return launch.tensors[2].ndim == 4


def _count_maps(launch: Launch) -> int:
    """Return the number of maps of dx: that of grad, and that of x if it has statistics of its own."""
    matrices = [tensor for tensor in launch.tensors[3:] if tensor.ndim == 4]
    return 2 if len(matrices) > 1 else 1


def _pad(size: int, block: int) -> int:
    return math.ceil(size / block) * block
