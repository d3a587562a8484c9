r"""Samples small enough for one program, such as tokens: one kernel whitens them, and one is its backward.

A sample ``x[N, 1, K, J, P]`` has K features of L = J·P values. Its K×K matrix can be as large as the sample itself, so
it never leaves the program: forward reads x and writes y; backward reads x and grad, computes the matrix again, and
writes dx. Only x is saved for backward.

With :math:`X` the centred sample, the matrix can be applied on either side,

.. math:: f(\tfrac1L X X^T + \epsilon I_K)\, X = X f(\tfrac1L X^T X + \epsilon I_L),

and the kernels use the smaller one. They see a sample as rows, which are whitened, and columns: these are features and
values or, with fewer values than features, values and features (``IS_TRANSPOSED``). The mean is then along the other
axis, and the trace, by which Newton's iteration divides, is :math:`\epsilon (K - L)` larger than that of the smaller
matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm.ops.triton.per_sample_kernels import differentiate_samples_kernel, whiten_samples_kernel
from whitenorm.ops.triton.tiling import dot_precision, launch, next_power_of_2

# Fewest rows that matrix units take, which are also the rows per warp, and most with which the iteration stays in
# registers.
_WARP_ROWS = 16
_LARGEST_ROWS = 32
# Columns per warp that fit beside its matrices with little spilling, and most columns.
_WARP_COLUMNS = 64
_LARGEST_COLUMNS = 128
# Warps of these kernels that a multiprocessor has registers for, and the number of multiprocessors to assume where the
# device does not tell.
_WARPS_PER_PROCESSOR = 8
_PROCESSORS = 132


class _Tile(NamedTuple):
    """Padded sizes of a sample's tile, and whether its rows are values rather than features."""

    rows: int
    columns: int
    is_transposed: bool

    @property
    def warps(self) -> int:
        return self.rows // _WARP_ROWS * max(1, self.columns // _WARP_COLUMNS)


def is_supported(shape: tuple[int, ...], steps: int) -> bool:
    """Return whether a sample of ``x[N, G, K, J, P]`` is one group and small enough for one program.

    Example::

        >>> is_supported((1, 1, 24, 32, 1), 5), is_supported((1, 1, 32, 8, 196), 5)
        (True, False)
    """
    tile = _choose_tile(shape)
    return shape[1] == 1 and tile.rows <= _LARGEST_ROWS and tile.columns <= _LARGEST_COLUMNS


def whiten_samples(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    out: Tensor,
) -> tuple[Tensor, ...]:
    """Compute γ·W(x - mean) + β with the mean and covariance of each sample, into ``out``; save nothing.

    Args:
        x: ``(N, 1, K, J, P)``, of any strides under which no two entries share memory.
        weight, bias: γ and β, ``(1, K, J)``.
        eps: added to the diagonal of the covariance.
        steps: number of Newton steps.
        out: tensor of x's shape that y is written to.
    """
    launch(
        whiten_samples_kernel,
        (x.shape[0],),
        x,
        x,
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        out,
        _strides(x),
        _strides(out),
        **_arguments(x, eps, steps),
    )
    return ()


def whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    saved: tuple[Tensor, ...],
    out: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of :func:`whiten_samples`: that of x into ``out``, and return those of γ and β.

    ``grad`` may have any strides. The gradients of γ and β are ``(1, K, J)`` in float32, None where these are None.
    """
    programs = min(x.shape[0], _count_programs(x.device, _choose_tile(x.shape)))
    sums = [
        None if tensor is None else x.new_empty(programs, *x.shape[2:], dtype=torch.float32)
        for tensor in (weight, bias)
    ]
    launch(
        differentiate_samples_kernel,
        (programs,),
        x,
        grad,
        x,
        None if weight is None else weight.contiguous(),
        out,
        *sums,
        x.shape[0],
        _strides(grad),
        _strides(x),
        _strides(out),
        **_arguments(x, eps, steps),
    )
    dweight, dbias = (None if tensor is None else tensor.sum((0, 3)).unsqueeze(0) for tensor in sums)
    return dweight, dbias


def _choose_tile(shape: tuple[int, ...]) -> _Tile:
    features, values = shape[2], shape[3] * shape[4]
    rows = max(_WARP_ROWS, next_power_of_2(min(features, values)))
    columns = max(_WARP_ROWS, next_power_of_2(max(features, values)))
    return _Tile(rows, columns, values < features)


def _count_programs(device: torch.device, tile: _Tile) -> int:
    """Return how many programs share the samples, each with its own partial sums: as many as run at a time."""
    processors = _PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * max(1, _WARPS_PER_PROCESSOR // tile.warps)


def _strides(x: Tensor) -> tuple[int, int, int, int]:
    """Return the strides of N, K, J and P."""
    n, _, k, j, p = x.stride()
    return n, k, j, p


def _arguments(x: Tensor, eps: float, steps: int) -> dict[str, Any]:
    """Return the arguments that both kernels share, most of them known when compiling."""
    tile = _choose_tile(x.shape)
    return {
        "eps": float(eps),
        "extra_trace": eps * (x.shape[2] - x.shape[3] * x.shape[4]) if tile.is_transposed else 0.0,
        "K": x.shape[2],
        "J": x.shape[3],
        "P": x.shape[4],
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "IS_TRANSPOSED": tile.is_transposed,
        "STEPS": steps,
        "PRECISION": dot_precision(x.device, torch.float32),
        "num_warps": tile.warps,
    }
