"""The four steps in one autograd function: moments, pool, solve, apply, and one fused backward for all methods."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm.core.apply import Map, Scale, must_centre, whitened
from whitenorm.core.dual import centred, centred_rows
from whitenorm.core.gradients import fold_backward, input_gradient, scaled_backward
from whitenorm.core.layout import Layout
from whitenorm.core.mask import cleared, counted, filled
from whitenorm.core.mode import is_tracing
from whitenorm.core.moments import Moments, moments
from whitenorm.core.pooling import Mixing, Pooled, only_batch, pool, pool_backward
from whitenorm.core.precision import compute_dtype, no_autocast
from whitenorm.core.ranks import Group
from whitenorm.core.vjp import present_vjp
from whitenorm.solvers.base import Solver


class Method(NamedTuple):
    """A method: a choice at each step.

    ``layout`` says what is whitened together, ``statistics`` are pooled, the covariance becomes
    ``scale``·Σ + ``eps``·I, and ``solver`` turns it into a matrix. The batch is that of all ranks of ``group``.
    """

    layout: Layout
    statistics: tuple[str, ...]
    solver: Solver
    eps: float
    scale: float = 1.0
    group: Group = None

    def pooled(self) -> bool:
        """Whether moments are needed over the batch only."""
        return only_batch(self.statistics)


class Whitened(NamedTuple):
    """The output, and what running statistics are made of: batch mean, covariance and whitening matrix.

    ``number`` is how many values they are over, which over ranks can be none; None where the shape of x tells.
    """

    y: Tensor
    mean: Tensor
    cov: Tensor
    whitening: Tensor
    number: Tensor | None


def whiten(
    x: Tensor,
    method: Method,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mixing: Mixing | None = None,
    population: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
) -> Whitened:
    r"""Whiten ``(N, C, ...)``: :math:`y = \gamma\, W(\hat\Sigma)\,(x - \hat\mu) + \beta`, differentiably.

    Statistics and matrices are computed in float32 at least; y has the dtype of x. Kept for backward: x, and per
    covariance the one or two matrices that the solver asks for and, for mixed statistics, the samples' own.

    Args:
        x: of any strides.
        method: the method.
        weight, bias: γ and β, ``(C,)``.
        mixing: of several statistics.
        population: mean ``(1, G, K)`` and covariance ``(1, G, K, K)`` in place of the batch's; constants.
        mask: which positions count in statistics of the batch, ``(N, ...)``; the others give 0.
    """
    given = (x, weight, bias, *(mixing or (None, None)), *(population or (None, None)), mask)
    run = _Whiten.forward if is_tracing() else _Whiten.apply
    y, whitening, _, mean, *rest = run(*given, method)  # type: ignore[call-arg]
    number = rest[-1] if method.group is not None else None if mask is None else mask.sum()
    if mixing is None:
        return Whitened(y, mean, rest[0], whitening, number)
    mean, cov = population or rest[2:4]
    return Whitened(y, mean, cov, whitening, number)


class _Given(NamedTuple):
    """The tensors a method is given, in the order the autograd function takes them."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean_logits: Tensor | None
    cov_logits: Tensor | None
    population_mean: Tensor | None
    population_cov: Tensor | None
    mask: Tensor | None

    def prepared(self, layout: Layout) -> _Given:
        """The same in the dtype of computation, with x as ``[N, G, K, L]``, and γ and β as they go with it."""
        dtype = compute_dtype(self.x.dtype)
        _, *given, mask = self
        weight, bias, *rest = [None if tensor is None else tensor.to(dtype) for tensor in given]
        weight, bias = [None if tensor is None else layout.parameter(tensor) for tensor in (weight, bias)]
        x = self.x.to(dtype)
        x = x if mask is None else filled(x, mask)
        return _Given(layout.split(x), weight, bias, *rest, mask)  # type: ignore[call-arg]

    def cleared(self, y: Tensor) -> Tensor:
        """What belongs to x, with 0 at positions that do not count."""
        return y if self.mask is None else cleared(y, self.mask)

    def scale(self, layout: Layout) -> Scale | None:
        """γ and β of prepared tensors, where they do not fold into the matrix."""
        if not layout.across or (self.weight is None and self.bias is None):
            return None
        return Scale(self.weight, self.bias)

    def mixing(self) -> Mixing | None:
        if self.mean_logits is None or self.cov_logits is None:
            return None
        return Mixing(self.mean_logits, self.cov_logits)

    def population(self) -> Moments | None:
        if self.population_mean is None or self.population_cov is None:
            return None
        return Moments(self.population_mean, self.population_cov, number=0)


def _statistics(prepared: _Given, method: Method) -> tuple[Pooled, Tensor]:
    """Moments and pool: the pooled statistics, and the covariance that is solved for."""
    sample = moments(prepared.x, method.pooled(), method.layout.dual)
    sample = sample if prepared.mask is None else counted(sample, prepared.mask)
    pooled = pool(sample, method.statistics, prepared.mixing(), prepared.population(), method.group)
    return pooled, _regularised(pooled.cov, method)


def _regularised(cov: Tensor, method: Method) -> Tensor:
    cov = cov if method.scale == 1 else method.scale * cov
    return torch.add(cov, torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device), alpha=method.eps)


def _applied(whitening: Tensor, layout: Layout) -> Tensor:
    """The matrix that multiplies x."""
    return centred_rows(whitening) if layout.dual else whitening


def _output(x: Tensor, prepared: _Given, layout: Layout, whitening: Tensor, mean: Tensor) -> Tensor:
    """Apply: y in the shape, memory format and dtype of x."""
    folds = (None, None) if layout.across else (prepared.weight, prepared.bias)
    matrix = _applied(whitening, layout)
    y = whitened(prepared.x, matrix, mean, *folds, prepared.scale(layout), layout, x)
    return prepared.cleared(y.to(x.dtype))


def _differentiable(given: _Given, method: Method) -> Tensor:
    """The same y, as a graph of differentiable operations: what a second derivative is taken of."""
    prepared = given.prepared(method.layout)
    pooled, cov = _statistics(prepared, method)
    return _output(given.x, prepared, method.layout, method.solver.differentiable(cov), pooled.mean)


class _Whiten(torch.autograd.Function):
    """Forward returns y and then, for its users and for backward, tensors that autograd does not follow.

    They are: the whitening matrix, the covariance it was solved from, the pooled mean; then the pooled covariance of
    a single statistic, or the moments that several were mixed from; then what the solver found; then, over ranks, the
    number of values.
    """

    generate_vmap_rule = True

    # Spelled out: Dynamo takes the first of *inputs for a context where nothing needs a gradient.
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask, method
    ):
        tensors = (x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask)
        with no_autocast(x):
            prepared = _Given(*tensors).prepared(method.layout)
            pooled, cov = _statistics(prepared, method)
            whitening, found = method.solver.solve(cov)
            y = _output(x, prepared, method.layout, whitening, pooled.mean)
        found = found if method.group is None else (*found, pooled.batch.number)
        if prepared.mixing() is None:
            return y, whitening, cov, pooled.mean, pooled.cov, *found
        sample, batch = pooled.sample, pooled.batch
        mixed = (sample.mean, sample.cov) if prepared.population() else (sample.mean, sample.cov, batch.mean, batch.cov)
        return y, whitening, cov, pooled.mean, *mixed, *found

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, ctx.method = inputs
        _, whitening, cov, mean, *rest = output if ctx.method.group is None else output[:-1]
        given = _Given(*tensors)
        mixed = 0 if given.mixing() is None else 2 if given.population() else 4
        kept = ctx.method.solver.keep(cov, whitening, tuple(rest[max(mixed, 1) :]))
        if mixed:
            # It can be mixed again from the moments, which are kept.
            kept = tuple([None if tensor is cov else tensor for tensor in kept])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, mean, *rest[:mixed], *kept)

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
        if grad is None:
            return (None,) * 9
        # Read once: activation checkpointing gives each saved tensor out only once.
        saved = ctx.saved_tensors
        tensors, kept = saved[:8], saved[8:]
        given = _Given(*tensors)
        with no_autocast(given.x):
            if torch.is_grad_enabled():
                grads = _backward_differentiably(given, ctx.method, grad)
            else:
                grads = _backward(given, ctx.method, kept, grad, ctx.needs_input_grad[0])
        return *grads, None, None, None, None


def _backward(
    given: _Given, method: Method, kept: tuple[Tensor, ...], grad: Tensor, needs_x: bool
) -> list[Tensor | None]:
    """Gradients of x, weight, bias and the mixing logits."""
    layout = method.layout
    prepared = given.prepared(layout)
    x, scale = prepared.x, prepared.scale(layout)
    weight, bias = (None, None) if layout.across else (prepared.weight, prepared.bias)
    grad = layout.split(given.cleared(grad.to(x.dtype)))
    mean, sample, batch, solver = _unpack(prepared, method, kept)
    whitening, pullback = method.solver.vjp(*solver)
    whitening = _applied(whitening, layout)
    matrix = whitening if weight is None else weight.unsqueeze(-1) * whitening
    centre = must_centre(x, whitening, mean, layout)
    if scale is None:
        small = fold_backward(grad, x, whitening, mean, weight, bias, matrix, layout, centre)
    else:
        small = scaled_backward(grad, x, whitening, mean, scale, layout, centre)
    if layout.dual:
        # Its mean is in the matrix.
        grad_mean, grad_cov = torch.zeros_like(mean), centred(pullback(centred_rows(small.whitening)))
    else:
        grad_mean, grad_cov = small.mean, pullback(small.whitening)
    grad_cov = grad_cov if method.scale == 1 else method.scale * grad_cov
    through, mixing = pool_backward(
        sample,
        batch,
        method.statistics,
        prepared.mixing(),
        grad_mean,
        grad_cov,
        prepared.population() is not None,
        method.group,
    )
    grad_x = None
    if needs_x:
        # Around the samples' own means, where x is smallest, however far those of the batch are.
        centre = centre if sample.mean is mean else must_centre(x, whitening, sample.mean, layout)
        linear = Map(through.matrix, sample.mean, through.offset)
        linear = linear if centre else linear.folded()
        grad_x = input_gradient(grad, x, matrix, scale, linear, layout, given.x)
        grad_x = given.cleared(grad_x.to(given.x.dtype))
    return [grad_x, small.weight, small.bias, *(mixing or (None, None))]


def _unpack(
    prepared: _Given, method: Method, kept: tuple[Tensor, ...]
) -> tuple[Tensor, Moments, Moments, tuple[Tensor, ...]]:
    """The pooled mean, the moments of samples and batch, and the solver's tensors."""
    mean, *rest = kept
    n, _, features, positions = prepared.x.shape
    number: int | Tensor = n * positions if method.pooled() else features if method.layout.dual else positions
    if prepared.mask is not None:
        number = prepared.mask.sum().to(mean.dtype)
    if prepared.mixing() is None:
        # The covariance itself plays no part in the gradient of a single statistic.
        single = Moments(mean, mean, number)
        return mean, single, single, tuple(rest)
    sample = Moments(rest[0], rest[1], number)
    population = prepared.population()
    if population is not None:
        batch, solver = population, rest[2:]
    else:
        batch, solver = Moments(rest[2], rest[3], n * positions), rest[4:]
    if any(tensor is None for tensor in solver):
        cov = _regularised(pool(sample, method.statistics, prepared.mixing(), batch).cov, method)
        solver = [cov if tensor is None else tensor for tensor in solver]
    return mean, sample, batch, tuple(solver)


def _backward_differentiably(given: _Given, method: Method, grad: Tensor) -> list[Tensor | None]:
    """The same gradients as a graph, for a derivative of the derivative."""
    if method.group is not None:
        raise RuntimeError(
            "expected no second derivative of statistics that are synchronised over ranks (got create_graph=True, or a "
            "gradient of a gradient); set the layers' process_group to None for it"
        )

    def forward(*tensors: Any) -> Tensor:
        return _differentiable(_Given._make((*tensors, *given[5:])), method)

    return present_vjp(forward, given[:5])(grad)
