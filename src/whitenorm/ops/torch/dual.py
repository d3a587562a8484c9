r"""Group Whitening of vectors with few values per group: the small matrix of the values replaces that of the groups.

A matrix that is a function f of the covariance's spectrum can change sides. With :math:`X \in R^{K \times L}` centred,

.. math:: f(\tfrac1L X X^T + \epsilon I_K)\, X = X f(\tfrac1L X^T X + \epsilon I_L),

so for L < K the L×L side is cheaper. Seen as ``x[N, 1, L, K, 1]``, with the values as features, all steps are the usual
ones, except that centring mixes features: it is the projection :math:`C = I - \frac1L 1 1^T`, folded into the matrix.
The trace is :math:`\epsilon (K - L)` larger on the large side, which a solver that divides by it must know:
:meth:`whitenorm.solvers.Solver.reduce`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.torch.passes import Term, Workspace, flatten_features, sum_maps, sum_outer
from whitenorm.ops.torch.scaled import differentiate_map, make_scale
from whitenorm.ops.types import (
    AffineGrad,
    MapGradients,
    Method,
    Mixing,
    Moments,
    Solution,
    Statistics,
    StatisticsGrads,
)


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    """Compute covariances of x centred over the features; the means, whose subtraction is in the matrix, are zero."""
    assert sample
    assert not batch
    x = flatten_features(x)
    workspace, num_values = Workspace(x), x.shape[2]
    covs = []
    for block in workspace.blocks(x, split_positions=False):
        x_block = block.take(x)
        mean = x_block.mean(-2, keepdim=True, dtype=workspace.dtype)
        centred = torch.sub(x_block, mean, out=workspace.buffer("centred", x_block, padded=True))
        covs.append(sum_outer(centred, centred, pooled=False))
    cov = torch.cat(covs).div_(num_values)
    return Statistics(Moments(cov.new_zeros(cov.shape[:3]), cov, num_values), None)


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    return sum_maps([Term(_centre_rows(whitening), x, _shift(x))], None, make_scale(weight, bias), out)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    return differentiate_map(grad, x, _centre_rows(whitening), _shift(x), None, weight, bias)


def solve_backward(
    grads: MapGradients,
    solution: Solution,
    statistics: Statistics,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> StatisticsGrads:
    assert statistics.sample is not None
    whitening, mean, cov, residuals = solution
    grad_cov = _centre(method.solver.backward(_centre_rows(grads.matrix), cov, whitening, residuals))
    through = AffineGrad(grad_cov, torch.zeros_like(grads.offset), mean, statistics.sample.num_values)
    return StatisticsGrads(through, None, grads.weight, grads.bias, None)


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    assert sample is not None
    through = Term(sample.matrix * (2 / sample.num_values), x, _shift(x))
    first = Term(_centre_rows(whitening).mT, grad, scale=make_scale(weight, None))
    return sum_maps([first, through], None, None, out)


def _shift(x: Tensor) -> Tensor:
    """Return the first feature of every value; without it, the product does not have to cancel a large mean."""
    return flatten_features(x)[..., :1, :]


def _centre_rows(matrix: Tensor) -> Tensor:
    """Return the matrix times C: each row without its mean."""
    return matrix - matrix.mean(-1, keepdim=True)


def _centre(matrix: Tensor) -> Tensor:
    """Return C times the matrix times C."""
    return _centre_rows(_centre_rows(matrix).mT).mT
