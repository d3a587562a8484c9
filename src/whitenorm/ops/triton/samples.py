r"""Samples small enough for one program, such as tokens: whitened in one kernel, and differentiated in one.

A sample ``x[N, 1, K, J, P]`` has K features of L = J·P values, which are whitened against each other. Its K×K matrix
can be as large as the sample itself, so that it never leaves the program: forward reads x and writes y, backward reads
x and grad, finds the matrix again, and writes dx. Nothing is kept in between but x.

With :math:`X` the centred sample, the matrix may be taken on either side,

.. math:: f(\tfrac1L X X^T + \epsilon I_K)\, X = X f(\tfrac1L X^T X + \epsilon I_L),

and is taken on the smaller one: a program sees its sample as rows to be whitened and columns, which are features and
values, or, with fewer values than features, the other way round (``TURNED``). Centring is then along the other axis,
and the trace, by which Newton's iteration divides, is :math:`\epsilon (K - L)` larger than the smaller matrix's own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from whitenorm.ops.triton.tiles import launch, precision

# Of float32: the floor of a trace (see whitenorm.solvers.base.smallest), and twice the rounding error.
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny ** 0.5)
_ROUNDING = tl.constexpr(2 * torch.finfo(torch.float32).eps)

# The least size of a side that matrix units take, which is also the rows of a warp, and the largest for which the
# iteration stays in registers.
_WARP_ROWS = 16
_LARGEST_ROWS = 32
# The columns that warps take beside their matrices without spilling much, and the largest number of columns.
_WARP_COLUMNS = 64
_LARGEST_COLUMNS = 128
# Warps of such programs that a multiprocessor has the registers for, and the multiprocessors of a card that does not
# tell.
_WARPS_A_PROCESSOR = 8
_PROCESSORS = 132


class _Tile(NamedTuple):
    """How a program sees its sample: the sizes of a padded tile, and whether features and values are exchanged."""

    rows: int
    columns: int
    turned: bool

    @property
    def warps(self) -> int:
        return self.rows // _WARP_ROWS * max(1, self.columns // _WARP_COLUMNS)


def fits(x: Tensor) -> bool:
    """Whether a sample of ``x[N, 1, K, J, P]`` is small enough for one program.

    Example::

        >>> fits(torch.empty(1, 1, 24, 32, 1)), fits(torch.empty(1, 1, 32, 8, 196))
        (True, False)
    """
    tile = _tile(x)
    return tile.rows <= _LARGEST_ROWS and tile.columns <= _LARGEST_COLUMNS


def whiten_samples(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    out: Tensor,
) -> Tensor:
    """γ·W(x - mean) + β of each sample's own mean and covariance, with W by ``steps`` of Newton's iteration.

    Args:
        x: ``(N, 1, K, J, P)``, of any strides under which no two entries share memory.
        weight, bias: γ and β, ``(1, K, J)``.
        eps: added to the diagonal of the covariance.
        steps: of Newton's iteration.
        out: where it is written, of x's shape.
    """
    tile = _tile(x)
    launch(
        _forward,
        (x.shape[0],),
        x,
        x,
        _packed(weight),
        _packed(bias),
        out,
        *_strides(x),
        *_strides(out),
        float(eps),
        _lost_trace(x, tile, eps),
        **_constants(x, tile, steps),
    )
    return out


def whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    out: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of γ and β, from that of :func:`whiten_samples`' result and its arguments, and x's in ``out``.

    ``grad`` may have any strides. They are ``(1, K, J)`` in float32, or None without γ or β.
    """
    tile = _tile(x)
    programs = min(x.shape[0], _programs(x.device, tile))
    sums = [
        None if tensor is None else x.new_empty(programs, *x.shape[2:], dtype=torch.float32)
        for tensor in (weight, bias)
    ]
    launch(
        _backward,
        (programs,),
        x,
        grad,
        x,
        _packed(weight),
        out,
        *sums,
        x.shape[0],
        *_strides(grad),
        *_strides(x),
        *_strides(out),
        float(eps),
        _lost_trace(x, tile, eps),
        **_constants(x, tile, steps),
    )
    dweight, dbias = (None if tensor is None else tensor.sum((0, 3)).unsqueeze(0) for tensor in sums)
    return dweight, dbias


def _tile(x: Tensor) -> _Tile:
    features, values = x.shape[2], x.shape[3] * x.shape[4]
    turned = values < features
    rows, columns = sorted((features, values))
    return _Tile(_padded(rows), _padded(columns), turned)


def _padded(size: int) -> int:
    return max(_WARP_ROWS, triton.next_power_of_2(size))


def _programs(device: torch.device, tile: _Tile) -> int:
    """How many programs share the samples, each with partial sums of its own: as many as run at a time."""
    processors = _PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * max(1, _WARPS_A_PROCESSOR // tile.warps)


def _packed(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _strides(x: Tensor) -> tuple[int, int, int, int]:
    n, _, k, j, p = x.stride()
    return n, k, j, p


def _lost_trace(x: Tensor, tile: _Tile, eps: float) -> float:
    return eps * (x.shape[2] - x.shape[3] * x.shape[4]) if tile.turned else 0.0


def _constants(x: Tensor, tile: _Tile, steps: int) -> dict[str, object]:
    """What a kernel is compiled for."""
    return {
        "K": x.shape[2],
        "J": x.shape[3],
        "P": x.shape[4],
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "TURNED": tile.turned,
        "STEPS": steps,
        "PRECISION": precision(x.device),
        "num_warps": tile.warps,
    }


@triton.jit
def _forward(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    stride_n,
    stride_k,
    stride_j,
    stride_p,
    y_stride_n,
    y_stride_k,
    y_stride_j,
    y_stride_p,
    eps,
    extra_trace,
    K: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (N,). A program reads one sample, γ and β, and writes the sample's y."""
    feature, value, inside = _places(K, J * P, ROWS, COLUMNS, TURNED)
    sample = tl.program_id(0).to(tl.int64) * stride_n + _offsets(feature, value, stride_k, stride_j, stride_p, P)
    x = tl.load(x_ptr + sample, inside, 0.0).to(tl.float32)
    x = _centred(x, inside, J * P, TURNED)
    eye = _eye(J * P if TURNED else K, ROWS)
    trace, start = _start(x, eye, J * P, eps, extra_trace, PRECISION)
    y = tl.dot(_newton(start, eye, STEPS, PRECISION) / tl.sqrt(trace), x, input_precision=PRECISION)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + feature * J + value // P, inside, 0.0)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + feature * J + value // P, inside, 0.0)
    written = tl.program_id(0).to(tl.int64) * y_stride_n
    written += _offsets(feature, value, y_stride_k, y_stride_j, y_stride_p, P)
    tl.store(y_ptr + written, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["N"])
def _backward(
    grad_ptr,
    x_ptr,
    weight_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    N,
    grad_stride_n,
    grad_stride_k,
    grad_stride_j,
    grad_stride_p,
    stride_n,
    stride_k,
    stride_j,
    stride_p,
    dx_stride_n,
    dx_stride_k,
    dx_stride_j,
    dx_stride_p,
    eps,
    extra_trace,
    K: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (programs,). A program reads γ, and x and grad of the samples whose number leaves its own as remainder; it
    writes their dx, and their sums for dγ and dβ into its part of ``(programs, K, J, P)``.
    """
    L: tl.constexpr = J * P
    feature, value, inside = _places(K, L, ROWS, COLUMNS, TURNED)
    eye = _eye(L if TURNED else K, ROWS)
    offsets = _offsets(feature, value, stride_k, stride_j, stride_p, P)
    grad_offsets = _offsets(feature, value, grad_stride_k, grad_stride_j, grad_stride_p, P)
    dx_offsets = _offsets(feature, value, dx_stride_k, dx_stride_j, dx_stride_p, P)
    dweight = tl.zeros((ROWS, COLUMNS), tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for n in range(tl.program_id(0), N, tl.num_programs(0)):
        sample = tl.cast(n, tl.int64) * stride_n + offsets
        grad_sample = tl.cast(n, tl.int64) * grad_stride_n + grad_offsets
        x = _centred(tl.load(x_ptr + sample, inside, 0.0).to(tl.float32), inside, L, TURNED)
        grad = tl.load(grad_ptr + grad_sample, inside, 0.0).to(tl.float32)
        inner = grad
        if weight_ptr is not None:
            inner *= tl.load(weight_ptr + feature * J + value // P, inside, 0.0)
        # W keeps means zero, so that centring may come first on the way back as well.
        inner = _centred(inner, inside, L, TURNED)
        whitening, dcov = _solve_and_pull_back(x, inner, eye, L, eps, extra_trace, STEPS, PRECISION)
        dx = tl.dot(whitening, inner, input_precision=PRECISION)
        dx = tl.dot(dcov * (2 / L), x, dx, input_precision=PRECISION)
        written = tl.cast(n, tl.int64) * dx_stride_n + dx_offsets
        tl.store(dx_ptr + written, dx.to(dx_ptr.dtype.element_ty), inside)
        if dweight_ptr is not None:
            dweight += grad * tl.dot(whitening, x, input_precision=PRECISION)
        if dbias_ptr is not None:
            dbias += grad
    sums = tl.program_id(0) * K * L + feature * L + value
    if dweight_ptr is not None:
        tl.store(dweight_ptr + sums, dweight, inside)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + sums, dbias, inside)


@triton.jit
def _places(K: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    """Which feature and which value each entry of a tile is, and whether there is one."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    feature = columns if TURNED else rows
    value = rows if TURNED else columns
    return feature, value, (feature < K) & (value < L)


@triton.jit
def _offsets(feature, value, stride_k, stride_j, stride_p, P: tl.constexpr):
    """Where the entries of a tile lie in a sample."""
    return feature * stride_k + (value // P) * stride_j + (value % P) * stride_p


@triton.jit
def _eye(SIZE: tl.constexpr, ROWS: tl.constexpr):
    """The identity, and zero in the padding, where all matrices then stay zero."""
    i = tl.arange(0, ROWS)
    return ((i[:, None] == i[None, :]) & (i[:, None] < SIZE)).to(tl.float32)


@triton.jit
def _centred(x, inside, L: tl.constexpr, TURNED: tl.constexpr):
    """x without the mean of each feature, and then without what rounding has left of it: it may be far from zero."""
    AXIS: tl.constexpr = 0 if TURNED else 1
    x = tl.where(inside, x - tl.sum(x, AXIS, keep_dims=True) / L, 0.0)
    return tl.where(inside, x - tl.sum(x, AXIS, keep_dims=True) / L, 0.0)


@triton.jit
def _start(x, eye, L: tl.constexpr, eps, extra_trace, PRECISION: tl.constexpr):
    """The trace of x·xᵀ/L + ε·I, and this matrix divided by it, with a ridge of rounding error's size."""
    cov = tl.dot(x, tl.trans(x), input_precision=PRECISION) / L + eps * eye
    trace = tl.maximum(tl.sum(cov * eye) + extra_trace, _SMALLEST)
    start = cov / trace
    return trace, start + _ROUNDING * tl.sqrt(tl.sum(start * start)) * eye


@triton.jit
def _solve_and_pull_back(x, grad, eye, L: tl.constexpr, eps, extra_trace, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """W of a centred x, and the gradient of the covariance from that of W·x.

    W is a polynomial of a symmetric matrix: its derivative is its own adjoint, and takes a gradient back.
    """
    trace, start = _start(x, eye, L, eps, extra_trace, PRECISION)
    along = tl.dot(grad, tl.trans(x), input_precision=PRECISION)
    along = (along + tl.trans(along)) / (2 * tl.sqrt(trace))
    z, dz = _newton_with_derivative(start, along, eye, STEPS, PRECISION)
    # The trace divides both Σ and, by its root, the last Z.
    through_trace = tl.sum(along * z) / 2 + tl.sum(dz * start)
    dcov = ((dz + tl.trans(dz)) / 2 - through_trace * eye) / trace
    return z / tl.sqrt(trace), dcov


@triton.jit
def _newton(start, eye, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """The last Z of Newton's iteration: with U = Z²·start, U ← U·(3I - U)²/4 and Z ← Z·(3I - U)/2, from Z = I.

    Each step but the first, whose Z is I, is three products with the same matrix on their right.
    """
    if STEPS == 0:
        return eye
    u = start
    z = 1.5 * eye - 0.5 * u
    for _ in range(1, STEPS):
        u = _next(u, PRECISION)
        z = 1.5 * z - 0.5 * tl.dot(z, u, input_precision=PRECISION)
    return z


@triton.jit
def _newton_with_derivative(start, along, eye, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """The last Z, and its derivative by the start in a symmetric direction.

    With A = dU·U + U·dU/2 and C = A·U, that of U·(3I - U)²/4 is H + Hᵀ of H = 9/8·dU - A + C/4. It is symmetric to the
    last bit: what is not would grow from step to step.
    """
    if STEPS == 0:
        return eye, tl.zeros_like(eye)
    u = start
    du = along
    z = 1.5 * eye - 0.5 * u
    dz = -0.5 * du
    for _ in range(1, STEPS):
        a = tl.dot(du, u, input_precision=PRECISION)
        a += 0.5 * tl.trans(a)
        half = 1.125 * du - a + 0.25 * tl.dot(a, u, input_precision=PRECISION)
        du = half + tl.trans(half)
        u = _next(u, PRECISION)
        product = tl.dot(dz, u, tl.dot(z, du, input_precision=PRECISION), input_precision=PRECISION)
        dz = 1.5 * dz - 0.5 * product
        z = 1.5 * z - 0.5 * tl.dot(z, u, input_precision=PRECISION)
    return z, dz


@triton.jit
def _next(u, PRECISION: tl.constexpr):
    """U·(3I - U)²/4, a polynomial of this U alone: rounding errors do not grow."""
    square = tl.dot(u, u, input_precision=PRECISION)
    return 2.25 * u - 1.5 * square + 0.25 * tl.dot(square, u, input_precision=PRECISION)
