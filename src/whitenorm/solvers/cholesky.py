"""Cholesky factorization: whitening by a triangular matrix, as in self-supervised W-MSE."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.solvers.base import Solver, rounding, symmetric

# Factor by which the ridge grows where a covariance is indefinite with the first one.
_FALLBACK = 1000


class Cholesky(Solver):
    r"""Whitening by the inverse of the Cholesky factor: triangular, cheap, and dependent on the order of channels.

    .. math:: \Sigma = L L^T, \qquad W = L^{-1}, \qquad
              \frac{\partial L}{\partial \Sigma} = -\big( W^T \, \Phi(G W^T) \, W \big)_{sym}

    where G is the lower triangle of the gradient of W, and :math:`\Phi` keeps the lower triangle with half the
    diagonal. A ridge of the size of the rounding error allows singular matrices to be factorized; if it is too
    small, a larger one is used.

    Example::

        >>> cov = torch.tensor([[4.0, 0.0], [2.0, 2.0]]) @ torch.tensor([[4.0, 2.0], [0.0, 2.0]])
        >>> Cholesky().solve(cov)[0]
        tensor([[ 0.2500,  0.0000],
                [-0.2500,  0.5000]])
    """

    def solve(self, cov: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        whitening = torch.linalg.solve_triangular(_factor(cov), identity, upper=False)
        return whitening, ()

    def backward(self, grad: Tensor, cov: Tensor, whitening: Tensor, residuals: tuple[Tensor, ...]) -> Tensor:
        inner = (grad.tril() @ whitening.mT).tril()
        inner = inner - torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1) / 2)
        return -symmetric(whitening.mT @ inner @ whitening)


def _factor(cov: Tensor) -> Tensor:
    identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
    ridge = rounding(cov)
    # cholesky_ex does not raise, which would need a host sync. Sums of equal terms, as in a batch of two points, have
    # errors larger than the first ridge.
    _, info = torch.linalg.cholesky_ex((cov + ridge * identity).detach())
    ridge = torch.where(info[..., None, None] == 0, ridge, _FALLBACK * ridge)
    factor, info = torch.linalg.cholesky_ex(cov + ridge * identity)
    # A matrix that is not finite gives NaN.
    return torch.where(info[..., None, None] == 0, factor, torch.nan)
