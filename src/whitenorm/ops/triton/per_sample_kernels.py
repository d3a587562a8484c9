"""Device code of :mod:`whitenorm.ops.triton.per_sample`, where the maths is explained."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Of float32: the floor of a trace (see whitenorm._runtime.smallest), and twice the rounding error.
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny ** 0.5)
_ROUNDING = tl.constexpr(2 * torch.finfo(torch.float32).eps)


@triton.jit
def whiten_samples_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    x_strides,
    y_strides,
    eps,
    extra_trace,
    K: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_TRANSPOSED: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Whiten samples.

    Grid: (N,). A program reads one sample, γ and β, and writes the sample's y.
    """
    feature, value, inside = _entries(K, J * P, ROWS, COLUMNS, IS_TRANSPOSED)
    n = tl.program_id(0)
    x = tl.load(x_ptr + _offsets(n, feature, value, x_strides, P), inside, 0.0).to(tl.float32)  # [ROWS, COLUMNS]
    x = _centre(x, inside, J * P, IS_TRANSPOSED)
    eye = _eye(J * P if IS_TRANSPOSED else K, ROWS)  # [ROWS, ROWS]
    trace, start = _start(x, eye, J * P, eps, extra_trace, PRECISION)
    y = tl.dot(_newton(start, eye, STEPS, PRECISION) / tl.sqrt(trace), x, input_precision=PRECISION)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + feature * J + value // P, inside, 0.0)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + feature * J + value // P, inside, 0.0)
    tl.store(y_ptr + _offsets(n, feature, value, y_strides, P), y.to(y_ptr.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["N"])
def differentiate_samples_kernel(
    grad_ptr,
    x_ptr,
    weight_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    N,
    grad_strides,
    x_strides,
    dx_strides,
    eps,
    extra_trace,
    K: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_TRANSPOSED: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the gradients of x, and partial sums of those of γ and β.

    Grid: (programs,). Program i handles the samples i, i + programs, and so on: it reads γ, their x and their grad. It
    writes their dx, and their sums for dγ and dβ to its part of ``(programs, K, J, P)``.
    """
    L: tl.constexpr = J * P
    feature, value, inside = _entries(K, L, ROWS, COLUMNS, IS_TRANSPOSED)
    eye = _eye(L if IS_TRANSPOSED else K, ROWS)  # [ROWS, ROWS]
    dweight = tl.zeros((ROWS, COLUMNS), tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for n in range(tl.program_id(0), N, tl.num_programs(0)):
        x = tl.load(x_ptr + _offsets(n, feature, value, x_strides, P), inside, 0.0).to(tl.float32)  # [ROWS, COLUMNS]
        x = _centre(x, inside, L, IS_TRANSPOSED)
        grad = tl.load(grad_ptr + _offsets(n, feature, value, grad_strides, P), inside, 0.0).to(tl.float32)
        inner = grad
        if weight_ptr is not None:
            inner *= tl.load(weight_ptr + feature * J + value // P, inside, 0.0)
        # W maps means of zero to zero, so backward may subtract the mean first as well.
        inner = _centre(inner, inside, L, IS_TRANSPOSED)
        whitening, dcov = _solve_with_gradient(x, inner, eye, L, eps, extra_trace, STEPS, PRECISION)
        dx = tl.dot(whitening, inner, input_precision=PRECISION)
        dx = tl.dot(dcov * (2 / L), x, dx, input_precision=PRECISION)
        tl.store(dx_ptr + _offsets(n, feature, value, dx_strides, P), dx.to(dx_ptr.dtype.element_ty), inside)
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
def _entries(K: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Return the feature and the value index of each entry of a tile, and whether it is inside the sample."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    feature = columns if IS_TRANSPOSED else rows
    value = rows if IS_TRANSPOSED else columns
    return feature, value, (feature < K) & (value < L)


@triton.jit
def _offsets(n, feature, value, strides, P: tl.constexpr):
    """Return the offsets of the entries of sample n, with the strides of N, K, J and P.

    They have 64 bits, because a channel may be far from the next: in a transposed tensor by N entries.
    """
    feature, value = tl.cast(feature, tl.int64), tl.cast(value, tl.int64)
    within_sample = feature * strides[1] + (value // P) * strides[2] + (value % P) * strides[3]
    return tl.cast(n, tl.int64) * strides[0] + within_sample


@triton.jit
def _eye(SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Return the identity, with zeros in the padding, where all matrices then stay zero."""
    i = tl.arange(0, ROWS)
    return ((i[:, None] == i[None, :]) & (i[:, None] < SIZE)).to(tl.float32)


@triton.jit
def _centre(x, inside, L: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Subtract the mean of each feature, and then the mean that rounding errors left, in case the first was large."""
    AXIS: tl.constexpr = 0 if IS_TRANSPOSED else 1
    x = tl.where(inside, x - tl.sum(x, AXIS, keep_dims=True) / L, 0.0)
    return tl.where(inside, x - tl.sum(x, AXIS, keep_dims=True) / L, 0.0)


@triton.jit
def _start(x, eye, L: tl.constexpr, eps, extra_trace, PRECISION: tl.constexpr):
    """Return the trace of x·xᵀ/L + ε·I, and this matrix divided by it plus a ridge of the size of rounding errors."""
    cov = tl.dot(x, tl.trans(x), input_precision=PRECISION) / L + eps * eye
    trace = tl.maximum(tl.sum(cov * eye) + extra_trace, _SMALLEST)
    start = cov / trace
    return trace, start + _ROUNDING * tl.sqrt(tl.sum(start * start)) * eye


@triton.jit
def _solve_with_gradient(x, grad, eye, L: tl.constexpr, eps, extra_trace, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """Return W of a centred x, and the gradient of its covariance for ``grad``, that of W·x.

    W is a polynomial of a symmetric matrix, so its derivative is self-adjoint: it maps gradients backward as it is.
    """
    trace, start = _start(x, eye, L, eps, extra_trace, PRECISION)
    direction = tl.dot(grad, tl.trans(x), input_precision=PRECISION)
    direction = (direction + tl.trans(direction)) / (2 * tl.sqrt(trace))
    z, dz = _newton_with_derivative(start, direction, eye, STEPS, PRECISION)
    # Σ is divided by the trace, and the last Z by its square root.
    grad_trace = tl.sum(direction * z) / 2 + tl.sum(dz * start)
    dcov = ((dz + tl.trans(dz)) / 2 - grad_trace * eye) / trace
    return z / tl.sqrt(trace), dcov


@triton.jit
def _newton(start, eye, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the last Z of Newton's iteration: with U = Z²·start, U ← U·(3I - U)²/4 and Z ← Z·(3I - U)/2, from Z = I.

    Each step but the first, whose Z is I, is three products with the same matrix on their right.
    """
    if STEPS == 0:
        return eye
    u = start
    z = 1.5 * eye - 0.5 * u
    for _ in range(1, STEPS):
        u = _next_u(u, PRECISION)
        z = 1.5 * z - 0.5 * tl.dot(z, u, input_precision=PRECISION)
    return z


@triton.jit
def _newton_with_derivative(start, direction, eye, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the last Z, and its derivative by the start in a symmetric direction.

    With A = dU·U + U·dU/2 and C = A·U, the derivative of U·(3I - U)²/4 is H + Hᵀ for H = 9/8·dU - A + C/4. It is
    symmetric to the last bit, because an asymmetry would grow from step to step.
    """
    if STEPS == 0:
        return eye, tl.zeros_like(eye)
    u = start
    du = direction
    z = 1.5 * eye - 0.5 * u
    dz = -0.5 * du
    for _ in range(1, STEPS):
        a = tl.dot(du, u, input_precision=PRECISION)
        a += 0.5 * tl.trans(a)
        half = 1.125 * du - a + 0.25 * tl.dot(a, u, input_precision=PRECISION)
        du = half + tl.trans(half)
        u = _next_u(u, PRECISION)
        product = tl.dot(dz, u, tl.dot(z, du, input_precision=PRECISION), input_precision=PRECISION)
        dz = 1.5 * dz - 0.5 * product
        z = 1.5 * z - 0.5 * tl.dot(z, u, input_precision=PRECISION)
    return z, dz


@triton.jit
def _next_u(u, PRECISION: tl.constexpr):
    """Return U·(3I - U)²/4, a polynomial of this U alone, so that rounding errors do not grow."""
    square = tl.dot(u, u, input_precision=PRECISION)
    return 2.25 * u - 1.5 * square + 0.25 * tl.dot(square, u, input_precision=PRECISION)
