r"""Whitening few values of many features: the small matrix of the values in place of the large one of the features.

A matrix that is a function f of the covariance's spectrum can change sides. With :math:`X \in R^{K \times L}` centred,

.. math:: f(\tfrac1L X X^T + \epsilon I_K)\, X = X f(\tfrac1L X^T X + \epsilon I_L),

so where L < K the L×L side is the cheaper one to solve. Seen as ``x[N, 1, L, K]``, with the values for features, all
steps are the usual ones, except that centring mixes features: it is the projection :math:`C = I - \frac1L 1 1^T`,
folded into the matrix. The trace is :math:`\epsilon (K - L)` larger on the large side, which a solver that divides by
it must know: :meth:`whitenorm.solvers.Solver.reduced`.
"""

from __future__ import annotations

from torch import Tensor


def centred_rows(matrix: Tensor) -> Tensor:
    """The matrix times C: each row without its mean."""
    return matrix - matrix.mean(-1, keepdim=True)


def centred(matrix: Tensor) -> Tensor:
    """C times the matrix times C."""
    return centred_rows(centred_rows(matrix).mT).mT
