"""The six steps in order, as one autograd function for all methods.

Forward: moments of x, solve for the matrix, apply it. Backward: gradients of the map, through the solve, to x.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import call, compute_dtype, is_forward_mode, is_transformed, no_autocast, present_vjp
from whitenorm.ops.check import check_counted
from whitenorm.ops.dispatch import TORCH, Kernels, under_transforms
from whitenorm.ops.distributed import Group, gradient_over_ranks, over_ranks
from whitenorm.ops.layout import Layout, written
from whitenorm.ops.masking import cleared, counted, filled
from whitenorm.ops.running import update
from whitenorm.ops.torch.solve import pooled
from whitenorm.ops.types import Method, Mixing, Moments, Running, Saved, Statistics


class Plan(NamedTuple):
    """How an input is whitened: what is whitened together, by which method, with which kernels.

    The batch is that of all ranks of ``group``.
    """

    layout: Layout
    method: Method
    kernels: Kernels = TORCH
    group: Group = None


def whiten(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mixing: Mixing | None = None,
    population: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    running: Running | None = None,
) -> Tensor:
    r"""Whiten ``(N, C, ...)``: :math:`y = \gamma\, W(\hat\Sigma)\,(x - \hat\mu) + \beta`, differentiably.

    Statistics and matrices are computed in float32 at least; y has the dtype of x. Saved for backward: x, and per
    covariance the one or two matrices that the solver asks for and, for mixed statistics, the samples' own.

    Args:
        x: of any strides.
        plan: how.
        weight, bias: γ and β, ``(C,)``.
        mixing: of several statistics.
        population: mean ``(1, G, K)`` and covariance ``(1, G, K, K)`` in place of the batch's; constants.
        mask: which positions count in statistics of the batch, ``(N, ...)``; the others give 0.
        running: statistics to take this batch's into.
    """
    logits, statistics = mixing or (None, None), population or (None, None)
    # By a plain constructor, which the compilers of older versions trace.
    given = _Given(x, weight, bias, logits[0], logits[1], statistics[0], statistics[1], mask)
    if is_forward_mode():
        with no_autocast(x):
            return _differentiable(given, plan, running)
    # Compilers and transforms do not follow a write within an autograd function: there it comes after.
    within = None if is_transformed() else running
    y, *outputs = call(_Whiten, *given, plan, within)
    if running is not None and within is None:
        update(running, *_recorded(given, plan, outputs))
    return y


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
        """The same in the dtype of computation, with x as ``[N, G, K, J, P]`` in its own, γ and β as ``(G, K, J)``."""
        dtype = compute_dtype(self.x.dtype)
        x, *given, mask = self
        weight, bias, *rest = [None if tensor is None else tensor.to(dtype) for tensor in given]
        weight, bias = [None if tensor is None else layout.parameter(tensor) for tensor in (weight, bias)]
        x = x if mask is None else filled(x.to(dtype), mask)
        return _Given(layout.split(x), weight, bias, *rest, mask)  # type: ignore[call-arg]

    def cleared(self, y: Tensor) -> Tensor:
        """What belongs to x, with 0 at positions that do not count."""
        return y if self.mask is None else cleared(y, self.mask)

    def mixing(self) -> Mixing | None:
        if self.mean_logits is None or self.cov_logits is None:
            return None
        return Mixing(self.mean_logits, self.cov_logits)

    def population(self) -> Moments | None:
        if self.population_mean is None or self.population_cov is None:
            return None
        return Moments(self.population_mean, self.population_cov, num_values=0)


def _measured(prepared: _Given, plan: Plan, kernels: Kernels) -> Statistics:
    """The moments that are needed, those of the batch over all ranks, or the population's in their place."""
    method, population = plan.method, prepared.population()
    measured = Statistics(None, population)
    if method.uses_sample() or population is None:
        measured = kernels.moments(prepared.x, method.uses_sample(), method.uses_batch() and population is None)
    if prepared.mask is not None:
        measured = counted(measured, prepared.mask)
    if population is not None:
        return Statistics(measured.sample, population)
    return measured if measured.batch is None else Statistics(measured.sample, over_ranks(measured.batch, plan.group))


def _differentiable(given: _Given, plan: Plan, running: Running | None = None) -> Tensor:
    """Compute the same y by differentiable operations, for second derivatives and forward mode."""
    if plan.group is not None:
        raise RuntimeError(
            "expected only first derivatives in reverse mode of statistics that are synchronised over ranks (got "
            "create_graph=True, a gradient of a gradient, or forward mode); set the layers' process_group to None for "
            "those"
        )
    kernels = under_transforms(plan.kernels)
    prepared = given.prepared(plan.layout)
    measured = _measured(prepared, plan, kernels)
    mean, cov = pooled(measured, plan.method, prepared.mixing())
    whitening = plan.method.solver.differentiable(cov)
    if running is not None and measured.batch is not None:
        update(running, measured.batch, whitening)
    affine = prepared.weight, prepared.bias
    return given.cleared(written(kernels.apply, plan.layout, given.x, prepared.x, whitening, mean, *affine))


class _Whiten(torch.autograd.Function):
    """Forward returns y and then, for its users and for backward, tensors that autograd does not follow.

    They are: the whitening matrix, the covariance it was solved from, the pooled mean; then the covariance of a single
    statistic without ε, or the moments that several were mixed from; then what the solver found; then, over ranks, the
    number of values.
    """

    generate_vmap_rule = True

    # Spelled out: Dynamo takes the first of *inputs for a context where nothing needs a gradient.
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask, plan, running
    ):
        given = _Given(x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask)
        kernels, layout = plan.kernels, plan.layout
        with no_autocast(x):
            prepared = given.prepared(layout)
            mixing = prepared.mixing()
            measured = _measured(prepared, plan, kernels)
            check_counted(x, mask, _single(measured).num_values)
            solved = kernels.solve(measured, plan.method, mixing, running)
            affine = prepared.weight, prepared.bias
            y = written(kernels.apply, layout, x, prepared.x, solved.whitening, solved.mean, *affine)
            y = given.cleared(y)
        small = _mixed(measured, given) if mixing is not None else [_single(measured).cov]
        number = () if plan.group is None else (_single(measured).num_values,)
        return y, solved.whitening, solved.cov, solved.mean, *small, *solved.found, *number

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, ctx.plan, _ = inputs
        _, whitening, cov, mean, *rest = output if ctx.plan.group is None else output[:-1]
        given = _Given(*tensors)
        mixed = _number_of_mixed(given, ctx.plan.method)
        found = rest[1:] if mixed is None else rest[mixed:]
        kept = ctx.plan.method.solver.keep(cov, whitening, tuple(found))
        if mixed is not None and not ctx.plan.kernels.as_it_lies:
            # It can be mixed again from the moments, which are kept, where operations cost less than memory.
            kept = tuple([None if tensor is cov else tensor for tensor in kept])
        ctx.mark_non_differentiable(*output[1:])
        if not is_transformed():
            # The vmap of older versions cannot batch gradients that are None.
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, mean, *rest[: mixed or 0], *kept)

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
        if grad is None:
            return (None,) * 10
        # Read once: activation checkpointing gives each saved tensor out only once.
        saved = ctx.saved_tensors
        tensors, kept = saved[:8], saved[8:]
        given = _Given(*tensors)
        with no_autocast(given.x):
            if torch.is_grad_enabled():
                grads = _backward_differentiably(given, ctx.plan, grad)
            else:
                grads = _backward(given, ctx.plan, kept, grad, ctx.needs_input_grad[0])
        return *grads, None, None, None, None, None


def _single(measured: Statistics) -> Moments:
    """The moments of the batch, or those of the samples where there are only these."""
    moments = measured.sample if measured.batch is None else measured.batch
    assert moments is not None
    return moments


def _mixed(measured: Statistics, given: _Given) -> list[Tensor]:
    """The moments that statistics were mixed from; the population's are given."""
    present = [measured.sample, measured.batch if given.population() is None else None]
    return [tensor for moments in present if moments is not None for tensor in (moments.mean, moments.cov)]


def _number_of_mixed(given: _Given, method: Method) -> int | None:
    """How many tensors these are; None where nothing is mixed."""
    if given.mixing() is None:
        return None
    return 2 * (method.uses_sample() + (method.uses_batch() and given.population() is None))


def _recorded(given: _Given, plan: Plan, outputs: list[Tensor]) -> tuple[Moments, Tensor]:
    """What running statistics are made of: the moments of the batch, and the whitening matrix."""
    whitening, _, mean, *rest = outputs
    number: int | Tensor = rest[-1] if plan.group is not None else 0 if given.mask is None else given.mask.sum()
    mixed = _number_of_mixed(given, plan.method)
    mean, cov = (mean, rest[0]) if mixed is None else rest[mixed - 2 : mixed]
    return Moments(mean, cov, number), whitening


def _backward(given: _Given, plan: Plan, kept: tuple[Tensor, ...], grad: Tensor, needs_x: bool) -> list[Tensor | None]:
    """Gradients of x, weight, bias and the mixing logits."""
    kernels, layout, method = under_transforms(plan.kernels), plan.layout, plan.method
    prepared = given.prepared(layout)
    x, weight, bias = prepared.x, prepared.weight, prepared.bias
    grad = layout.split(given.cleared(grad))
    measured, solved = _unpacked(prepared, plan, kept)
    grads = kernels.map_gradients(grad, x, solved.whitening, solved.mean, weight, bias)
    back = kernels.solve_backward(
        grads, solved, measured, method, weight, bias, prepared.mixing(), prepared.population() is not None
    )
    # On all ranks, whether or not x needs a gradient on this one: the others wait for it.
    batch = gradient_over_ranks(back.batch, plan.group)
    grad_x = None
    if needs_x:
        grad_x = given.cleared(
            written(kernels.input_gradient, layout, given.x, grad, x, solved.whitening, weight, back.sample, batch)
        )
    small = [None if tensor is None else layout.vector(tensor) for tensor in (back.weight, back.bias)]
    return [grad_x, *small, *(back.mixing or (None, None))]


def _unpacked(prepared: _Given, plan: Plan, kept: tuple[Tensor, ...]) -> tuple[Statistics, Saved]:
    """The moments, and what is left of the solution."""
    mean, *rest = kept
    method, values = plan.method, plan.layout.values(prepared.x)
    number: int | Tensor = values if prepared.mask is None else prepared.mask.sum().to(mean.dtype)
    mixed = _number_of_mixed(prepared, method)
    if mixed is None:
        # The covariance itself plays no part in the gradient of a single statistic.
        single = Moments(mean, mean.new_empty(0), number)
        measured = Statistics(single, None) if method.uses_sample() else Statistics(None, single)
        return measured, Saved(method.solver.restore(*rest), mean, tuple(rest))
    tensors, solver = rest[:mixed], rest[mixed:]
    sample = Moments(tensors[0], tensors[1], values) if method.uses_sample() else None
    batch = prepared.population()
    if batch is None and method.uses_batch():
        batch = Moments(tensors[-2], tensors[-1], values * (prepared.x.shape[0] if method.uses_sample() else 1))
    measured = Statistics(sample, batch)
    if any(tensor is None for tensor in solver):
        cov = pooled(measured, method, prepared.mixing())[1]
        solver = [cov if tensor is None else tensor for tensor in solver]
    return measured, Saved(method.solver.restore(*solver), mean, tuple(solver))


def differentiable_backward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: Plan, grad: Tensor
) -> list[Tensor | None]:
    """Gradients of x, weight and bias as a graph, where only these were given."""
    return _backward_differentiably(_Given(x, weight, bias, None, None, None, None, None), plan, grad)[:3]


def _backward_differentiably(given: _Given, plan: Plan, grad: Tensor) -> list[Tensor | None]:
    """The same gradients as a graph, for a derivative of the derivative."""

    def forward(*tensors: Any) -> Tensor:
        return _differentiable(_Given._make((*tensors, *given[5:])), plan)

    return present_vjp(forward, given[:5])(grad)
