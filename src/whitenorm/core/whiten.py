"""The four steps in one autograd function: moments, pool, solve, apply, and one fused backward for all methods."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.apply import apply, fold, fold_backward, input_gradient
from whitenorm.core.moments import Moments, moments
from whitenorm.core.pooling import SAMPLE_STATISTICS, Mixing, Pooled, pool, pool_backward
from whitenorm.core.precision import compute_dtype, no_autocast
from whitenorm.solvers.base import Solver, symmetric


class Method(NamedTuple):
    """A method: a choice at each step.

    ``statistics`` are pooled, the covariance becomes ``scale``·Σ + ``eps``·I, and ``solver`` turns it into a matrix.
    """

    statistics: tuple[str, ...]
    solver: Solver
    eps: float
    scale: float = 1.0

    @property
    def pooled(self) -> bool:
        """Whether moments are needed over the batch only."""
        return not any(name in SAMPLE_STATISTICS for name in self.statistics)


class Whitened(NamedTuple):
    """The output ``y[N, G, K, L]``, and what running statistics are made of: batch moments and whitening matrix."""

    y: Tensor
    mean: Tensor
    cov: Tensor
    whitening: Tensor


def whiten(
    x: Tensor,
    method: Method,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mixing: Mixing | None = None,
    population: tuple[Tensor, Tensor] | None = None,
) -> Whitened:
    r"""Whiten ``x[N, G, K, L]``: :math:`y = \gamma\, W(\hat\Sigma)\,(x - \hat\mu) + \beta`, differentiably.

    Statistics and matrices are computed in float32 at least; y has the dtype of x. Kept for backward: x, and per
    covariance one matrix for the solver and, for mixed statistics, the covariance itself.

    Args:
        x: any strides; a view from :mod:`whitenorm.core.layout`.
        method: the method.
        weight, bias: γ and β, ``(G, K)``.
        mixing: of several statistics.
        population: mean ``(1, G, K)`` and covariance ``(1, G, K, K)`` in place of the batch's; constants.
    """
    given = _Given(x, weight, bias, *(mixing or (None, None)), *(population or (None, None)))
    y, whitening, _, mean, *rest = _Whiten.apply(*given, method)
    if mixing is None:
        return Whitened(y, mean, rest[0], whitening)
    mean, cov = population or rest[2:4]
    return Whitened(y, mean, cov, whitening)


class _Given(NamedTuple):
    """The tensors a method is given, in the order the autograd function takes them."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean_logits: Tensor | None
    cov_logits: Tensor | None
    population_mean: Tensor | None
    population_cov: Tensor | None

    def widened(self) -> _Given:
        """The same in the dtype of computation."""
        dtype = compute_dtype(self.x.dtype)
        return _Given._make(None if tensor is None else tensor.to(dtype) for tensor in self)

    @property
    def mixing(self) -> Mixing | None:
        if self.mean_logits is None or self.cov_logits is None:
            return None
        return Mixing(self.mean_logits, self.cov_logits)

    @property
    def population(self) -> Moments | None:
        if self.population_mean is None or self.population_cov is None:
            return None
        return Moments(self.population_mean, self.population_cov, number=0)


def _statistics(given: _Given, method: Method) -> tuple[Pooled, Tensor]:
    """Moments and pool: the pooled statistics, and the covariance that is solved for."""
    pooled = pool(moments(given.x, method.pooled), method.statistics, given.mixing, given.population)
    identity = torch.eye(pooled.cov.shape[-1], dtype=pooled.cov.dtype, device=pooled.cov.device)
    return pooled, method.scale * pooled.cov + method.eps * identity


def _differentiable(given: _Given, method: Method) -> Tensor:
    """The same y, as a graph of differentiable operations: what a second derivative is taken of."""
    dtype = given.x.dtype
    given = given.widened()
    pooled, cov = _statistics(given, method)
    whitening = method.solver.differentiable(cov)
    return apply(given.x, fold(whitening, pooled.mean, given.weight, given.bias)).to(dtype)


class _Whiten(torch.autograd.Function):
    """Forward returns y and then, for its users and for backward, tensors that autograd does not follow.

    They are: the whitening matrix, the covariance it was solved from, the pooled mean; then the pooled covariance of
    a single statistic, or the moments that several were mixed from; then what the solver found.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):  # type: ignore[no-untyped-def]
        *tensors, method = inputs
        with no_autocast(tensors[0]):
            given = _Given(*tensors).widened()
            pooled, cov = _statistics(given, method)
            whitening, found = method.solver.solve(cov)
            y = apply(given.x, fold(whitening, pooled.mean, given.weight, given.bias)).to(tensors[0].dtype)
        if given.mixing is None:
            return y, whitening, cov, pooled.mean, pooled.cov, *found
        batch = () if given.population else pooled.batch[:2]
        return y, whitening, cov, pooled.mean, *pooled.sample[:2], *batch, *found

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, ctx.method = inputs
        _, whitening, cov, mean, *rest = output
        given = _Given(*tensors)
        mixed = 0 if given.mixing is None else 2 if given.population else 4
        kept = ctx.method.solver.keep(cov, whitening, tuple(rest[max(mixed, 1) :]))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, mean, *rest[:mixed], *kept)

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
        tensors, kept = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        if grad is None:
            return (None,) * 8
        given = _Given(*tensors)
        with no_autocast(given.x):
            if torch.is_grad_enabled():
                grads = _backward_differentiably(given, ctx.method, grad)
            else:
                grads = _backward(given, ctx.method, kept, grad, ctx.needs_input_grad[0])
        return *grads, None, None, None


def _backward(
    given: _Given, method: Method, kept: tuple[Tensor, ...], grad: Tensor, needs_x: bool
) -> list[Tensor | None]:
    """Gradients of x, weight, bias and the mixing logits."""
    dtype = given.x.dtype
    given = given.widened()
    x, weight, bias, *_ = given
    grad = grad.to(x.dtype)
    mean, sample, batch, solver = _unpack(given, method, kept)
    whitening, pullback = method.solver.vjp(*solver)
    folded = fold_backward(grad, x, whitening, mean, weight, bias)
    grad_cov = method.scale * symmetric(pullback(folded.whitening))
    through, mixing = pool_backward(
        sample, batch, method.statistics, given.mixing, folded.mean, grad_cov, given.population is not None
    )
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    grad_x = input_gradient(grad, x, matrix, through).to(dtype) if needs_x else None
    return [grad_x, folded.weight, folded.bias, *(mixing or (None, None))]


def _unpack(
    given: _Given, method: Method, kept: tuple[Tensor, ...]
) -> tuple[Tensor, Moments, Moments, tuple[Tensor, ...]]:
    """The pooled mean, the moments of samples and batch, and the solver's tensors."""
    mean, *rest = kept
    n, _, _, positions = given.x.shape
    number = n * positions if method.pooled else positions
    if given.mixing is None:
        # The covariance itself plays no part in the gradient of a single statistic.
        single = Moments(mean, mean, number)
        return mean, single, single, tuple(rest)
    sample = Moments(rest[0], rest[1], number)
    if given.population is not None:
        return mean, sample, given.population, tuple(rest[2:])
    return mean, sample, Moments(rest[2], rest[3], n * positions), tuple(rest[4:])


def _backward_differentiably(given: _Given, method: Method, grad: Tensor) -> list[Tensor | None]:
    """The same gradients as a graph, for a derivative of the derivative."""
    present = [i for i in range(5) if given[i] is not None]

    def forward(*tensors: Tensor) -> Tensor:
        replaced = dict(zip(present, tensors, strict=True))
        return _differentiable(_Given._make(replaced.get(i, tensor) for i, tensor in enumerate(given)), method)

    pullback = torch.func.vjp(forward, *(given[i] for i in present))[1]
    grads = dict(zip(present, pullback(grad), strict=True))
    return [grads.get(i) for i in range(5)]
