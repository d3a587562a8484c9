r"""Whitening few values of many features: the small matrix of the values in place of the large one of the features.

A matrix that is a function f of the covariance's spectrum can change sides. With :math:`X \in R^{K \times L}` centred,

.. math:: f(\tfrac1L X X^T + \epsilon I_K)\, X = X f(\tfrac1L X^T X + \epsilon I_L),

so where L < K the L×L side is the cheaper one to solve. Seen as ``x[N, 1, L, K, 1]``, with the values for features, all
steps are the usual ones, except that centring mixes features: it is the projection :math:`C = I - \frac1L 1 1^T`,
folded into the matrix. The trace is :math:`\epsilon (K - L)` larger on the large side, which a solver that divides by
it must know: :meth:`whitenorm.solvers.Solver.reduced`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.ops.torch.apply import Centre, whitened
from whitenorm.ops.torch.blocks import in_rows
from whitenorm.ops.torch.input_gradient import joined, propagated
from whitenorm.ops.torch.map_gradients import gradients
from whitenorm.ops.torch.moments import measure
from whitenorm.ops.types import AffineGrad, MapGradients, Method, Mixing, Saved, Statistics, StatisticsGrads

_CENTRE = Centre(first=True)


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    """Centred over the features; the mean, which is in the matrix, is zero here."""
    assert sample
    assert not batch
    return Statistics(measure(in_rows(x), pooled=False, over=-2), None)


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    return whitened(x, _centred_rows(whitening), mean, _CENTRE, weight, bias, out)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    return gradients(grad, x, _centred_rows(whitening), mean, _CENTRE, weight, bias)


def solve_backward(
    grads: MapGradients,
    kept: Saved,
    measured: Statistics,
    method: Method,
    weight: Tensor | None,
    bias: Tensor | None,
    mixing: Mixing | None,
    batch_is_constant: bool,
) -> StatisticsGrads:
    assert measured.sample is not None
    grad_cov = _centred(method.solver.backward(_centred_rows(grads.matrix), *kept.solver))
    through = AffineGrad(grad_cov, torch.zeros_like(grads.offset), measured.sample.mean, measured.sample.num_values)
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
    return propagated(grad, x, _centred_rows(whitening), weight, joined(sample, batch), _CENTRE, out)


def _centred_rows(matrix: Tensor) -> Tensor:
    """The matrix times C: each row without its mean."""
    return matrix - matrix.mean(-1, keepdim=True)


def _centred(matrix: Tensor) -> Tensor:
    """C times the matrix times C."""
    return _centred_rows(_centred_rows(matrix).mT).mT
