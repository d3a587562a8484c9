r"""Whitening by eigendecomposition: ZCA, the exact whitening of DBN, and PCA, its negative control.

Eigenvalues and eigenvectors are those of :math:`\Sigma / s`, with s the largest variance, because every gradient
contains :math:`\lambda^{-3/2}`, which leaves float32's range long before the gradient does. As
:math:`W(\Sigma) = W(\Sigma / s) / \sqrt s` for any s, s is treated as a constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm._runtime import apply_function, smallest, vjp
from whitenorm.solvers.base import Solver, symmetric


class ZCA(Solver):
    r"""Exact symmetric whitening by eigendecomposition (DBN, equation 4): the whitening matrix closest to I.

    .. math:: \Sigma = D \Lambda D^T, \qquad W = D \Lambda^{-1/2} D^T

    The gradient needs only the divided differences of :math:`\lambda^{-1/2}`, never
    :math:`1/(\lambda_i - \lambda_j)`, so it is finite for repeated eigenvalues:

    .. math:: \frac{\partial L}{\partial \Sigma} = D \Big( F \odot
              \big(D^T \tfrac{\partial L}{\partial W} D\big)_{sym} \Big) D^T, \qquad
              F_{ij} = \frac{-1}{\sqrt{\lambda_i} \sqrt{\lambda_j} (\sqrt{\lambda_i} + \sqrt{\lambda_j})}

    Eigenvalues below the precision of the dtype, relative to the largest, count as that precision.

    Example::

        >>> cov = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> whitening, _ = ZCA().solve(cov)
        >>> torch.allclose(whitening @ cov @ whitening.mT, torch.eye(2), atol=1e-6)
        True
    """

    def reduce(self, eigenvalue: float, multiplicity: int) -> Solver | None:
        return self if type(self) is ZCA else None

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        scale = _find_scale(cov)
        values, vectors = _eigh(cov / scale)
        return _inverse_root(values, vectors) / scale.sqrt(), (values, vectors, scale)

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        values, vectors, scale = residuals
        return _differentiate_inverse_root(values, vectors, grad / scale.sqrt()) / scale

    def differentiable(self, cov: Tensor) -> Tensor:
        scale = _find_scale(cov)
        inverse_root: Tensor = apply_function(_InverseRoot, cov / scale)
        return inverse_root / scale.sqrt()


class PCA(Solver):
    r"""Whitening along the eigenvectors, largest eigenvalue first (DBN, section 3.1): the paper's negative control.

    .. math:: W = \Lambda^{-1/2} D^T, \qquad \text{the first entry of each eigenvector} \ge 0

    The rows of W swap and rotate between batches, which the paper shows to harm training. The gradient has poles at
    repeated eigenvalues. If two eigenvalues are equal up to the dtype's precision, the part of the gradient that
    rotates one eigenvector into the other is set to zero.
    """

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        scale = _find_scale(cov)
        values, vectors = eigh_descending(cov / scale)
        whitening = _raise_to_floor(values).rsqrt()[..., None] * vectors.mT / scale.sqrt()
        return whitening, (values, vectors, scale)

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        values, vectors, scale = residuals
        roots = _raise_to_floor(values).rsqrt()
        grad = grad / scale.sqrt()
        inner = vectors.mT @ (grad.mT * roots[..., None, :])
        gap = values[..., None, :] - values[..., :, None]
        equal = gap.abs() <= _precision(values)[..., None]
        inner = torch.where(equal, 0, inner / torch.where(equal, 1, gap))
        along = (grad * vectors.mT).sum(-1)
        slope = torch.where(values < _precision(values), 0, -0.5 * roots**3)
        return symmetric(vectors @ (inner + torch.diag_embed(slope * along)) @ vectors.mT) / scale


class _InverseRoot(torch.autograd.Function):
    """Σ^(-1/2) of a scaled Σ, differentiable to any order, in reverse and in forward mode.

    A function of a symmetric matrix has a self-adjoint derivative: one function computes the gradient and the tangent.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(cov: Tensor) -> Tensor:
        return _inverse_root(*_eigh(cov))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return apply_function(_Derivative, *ctx.saved_tensors, grad)

    @staticmethod
    def forward_derivative(ctx, tangent: Tensor):  # type: ignore[no-untyped-def]
        return apply_function(_Derivative, *ctx.saved_tensors, tangent)


class _Derivative(torch.autograd.Function):
    """The derivative of Σ^(-1/2) along a symmetric direction, by divided differences.

    Its own derivatives go through the Lyapunov equation that the square root S of Σ satisfies, S·dS + dS·S = dΣ, whose
    solution is differentiable by the same equation.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(cov: Tensor, direction: Tensor) -> Tensor:
        return _differentiate_inverse_root(*_eigh(cov), direction)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return vjp(_derivative_by_lyapunov, *ctx.saved_tensors)[1](grad)

    @staticmethod
    def forward_derivative(ctx, cov_tangent: Tensor, direction_tangent: Tensor):  # type: ignore[no-untyped-def]
        cov, direction = ctx.saved_tensors
        whitening = _mask_floored(cov, apply_function(_InverseRoot, cov))
        root = symmetric(cov @ whitening)
        whitening_tangent = apply_function(_Derivative, cov, cov_tangent)
        root_tangent = apply_function(_Lyapunov, root, symmetric(cov_tangent))
        turned = 2 * symmetric(whitening_tangent @ symmetric(direction) @ whitening)
        right_tangent = turned + symmetric(whitening @ direction_tangent @ whitening)
        derivative = apply_function(_Derivative, cov, direction)
        return -apply_function(_Lyapunov, root, right_tangent + 2 * symmetric(root_tangent @ derivative))


def _derivative_by_lyapunov(cov: Tensor, direction: Tensor) -> Tensor:
    whitening = _mask_floored(cov, apply_function(_InverseRoot, cov))
    return -apply_function(_Lyapunov, symmetric(cov @ whitening), symmetric(whitening @ direction @ whitening))


def _mask_floored(cov: Tensor, whitening: Tensor) -> Tensor:
    """Fill matrices with a floored eigenvalue by NaN: they have no second derivative, and a number would be wrong."""
    values, _ = _eigh(cov.detach())
    floored = (values < _precision(values)).any(-1)[..., None, None]
    return whitening.masked_fill(floored, torch.nan)


class _Lyapunov(torch.autograd.Function):
    """The symmetric X with S·X + X·S = R, for positive definite S and symmetric R."""

    generate_vmap_rule = True

    @staticmethod
    def forward(root: Tensor, right: Tensor) -> Tensor:
        values, vectors = _eigh(root)
        inner = vectors.mT @ right @ vectors
        return symmetric(vectors @ (inner / (values[..., None, :] + values[..., :, None])) @ vectors.mT)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        root, solution = ctx.saved_tensors
        grad_right = apply_function(_Lyapunov, root, symmetric(grad))
        return -2 * symmetric(grad_right @ solution), grad_right

    @staticmethod
    def forward_derivative(ctx, root_tangent: Tensor, right_tangent: Tensor):  # type: ignore[no-untyped-def]
        root, solution = ctx.saved_tensors
        return apply_function(_Lyapunov, root, symmetric(right_tangent) - 2 * symmetric(root_tangent @ solution))


def _find_scale(cov: Tensor) -> Tensor:
    """Return the largest variance as ``(..., 1, 1)``; NaN where it is infinite, so that all results are NaN.

    Its floor times the dtype's precision is the floor of the eigenvalues.
    """
    largest = cov.detach().diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    largest = torch.where(largest.isfinite(), largest, torch.nan)
    return largest.clamp_min(smallest(cov.dtype) / torch.finfo(cov.dtype).eps)


def _eigh(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (ascending) and eigenvectors; NaN for a matrix that is not finite, where torch would raise.

    On a GPU, ``torch.linalg.eigh`` waits for the device to report convergence: the one host sync of the package.
    """
    finite = cov.isfinite().all(-1).all(-1)[..., None]
    identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
    values, vectors = torch.linalg.eigh(torch.where(finite[..., None], cov, identity))
    return torch.where(finite, values, torch.nan), vectors


def eigh_descending(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, largest first, and eigenvectors whose first entry is not negative."""
    values, vectors = [tensor.flip(-1) for tensor in _eigh(cov)]
    return values, vectors * torch.where(vectors[..., :1, :] < 0, -1, 1)


def _precision(values: Tensor) -> Tensor:
    """Return the size below which an eigenvalue is lost in the rounding error of the largest, as ``(..., 1)``.

    The largest eigenvalue of a scaled covariance is at least 1, unless the scale is at its floor; 1 is used then too.
    """
    largest = values.detach().amax(-1, keepdim=True)
    return largest.clamp_min(1) * torch.finfo(values.dtype).eps


def _raise_to_floor(values: Tensor) -> Tensor:
    return torch.maximum(values, _precision(values))


def _inverse_root(values: Tensor, vectors: Tensor) -> Tensor:
    return (vectors * _raise_to_floor(values).rsqrt()[..., None, :]) @ vectors.mT


def _differentiate_inverse_root(values: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    inner = symmetric(vectors.mT @ grad @ vectors)
    return vectors @ (inner * _compute_divided_differences(values)) @ vectors.mT


def _compute_divided_differences(values: Tensor) -> Tensor:
    """Return (f(λ_i) - f(λ_j)) / (λ_i - λ_j) of the floored f = λ^(-1/2) without cancellation; f'(λ_i) if i = j."""
    floored = _raise_to_floor(values)
    root = floored.sqrt()
    differences = -1 / (root[..., None, :] * root[..., :, None] * (root[..., None, :] + root[..., :, None]))
    # Flooring makes f constant below the floor: a factor of 1 above it, 0 below, and in between across it.
    gap = values[..., None, :] - values[..., :, None]
    moved = floored[..., None, :] - floored[..., :, None]
    above = (values == floored).to(values.dtype)[..., None, :].expand_as(gap)
    return differences * torch.where(gap == 0, above, moved / torch.where(gap == 0, 1, gap))
