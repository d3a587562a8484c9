"""The six steps in order, as one autograd function for all methods.

Forward: moments of x, solve for the matrix, apply it. Backward: gradients of the map, back through the solve, to x.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import (
    apply_function,
    compute_dtype,
    is_forward_mode,
    is_transformed,
    may_write_in_place,
    no_autocast,
    vjp_of_optional,
)
from whitenorm.ops.check import check_valid_count
from whitenorm.ops.dispatch import kernels_under_transforms, torch_kernels
from whitenorm.ops.distributed import Group, reduce_gradient, reduce_moments
from whitenorm.ops.layout import Layout, run_into
from whitenorm.ops.masking import fill_masked_with_mean, rescale_to_valid_count, zero_masked
from whitenorm.ops.torch.solve import pool, update_running
from whitenorm.ops.types import FusedKernels, Kernels, Method, Mixing, Moments, Running, Solution, Statistics
from whitenorm.solvers.newton import Newton


class Plan(NamedTuple):
    """How an input is whitened: its layout, the method, the kernels, and the ranks whose batches count as one."""

    layout: Layout
    method: Method
    kernels: Kernels
    group: Group = None


class Inputs(NamedTuple):
    """The tensors that a method uses, in the order of the autograd function's arguments."""

    x: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    mean_logits: Tensor | None = None
    cov_logits: Tensor | None = None
    population_mean: Tensor | None = None
    population_cov: Tensor | None = None
    mask: Tensor | None = None


class Saved(NamedTuple):
    """Results of forward that are saved for backward beside the inputs.

    The moments are those that statistics are mixed from; of a single statistic they are not needed. The covariance of
    a mix is None where it is pooled again from the moments, which takes less time than memory for one more matrix per
    sample. ``residuals`` are the solver's.
    """

    whitening: Tensor
    mean: Tensor
    cov: Tensor | None
    sample_mean: Tensor | None
    sample_cov: Tensor | None
    batch_mean: Tensor | None
    batch_cov: Tensor | None
    residuals: tuple[Tensor, ...]


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
    r"""Whiten ``(N, C, ...)`` differentiably: :math:`y = \gamma\, W(\hat\Sigma)\,(x - \hat\mu) + \beta`.

    Statistics and matrices are computed in float32 at least; y has the dtype of x. Saved for backward are x and a few
    matrices per covariance.

    Args:
        x: input, of any strides.
        plan: layout, method and kernels.
        weight, bias: γ and β, ``(C,)``.
        mixing: logits of several statistics.
        population: mean ``(1, G, K)`` and covariance ``(1, G, K, K)`` in place of the batch's; constants.
        mask: the positions ``(N, ...)`` that count in statistics of the batch; the others give 0.
        running: statistics to update with those of the batch.
    """
    logits, statistics = mixing or (None, None), population or (None, None)
    inputs = Inputs(x, weight, bias, logits[0], logits[1], statistics[0], statistics[1], mask)
    if is_forward_mode():
        with no_autocast(x):
            return _whiten_differentiably(inputs, plan, running)
    if running is None or not is_transformed():
        y, *_ = apply_function(_Whiten, *inputs, plan, running)
        return y
    # Compilers and transforms do not follow writes inside an autograd function, so that the update comes after it.
    y, whitening, mean, _, _, _, batch_mean, batch_cov, num_values, *_ = apply_function(_Whiten, *inputs, plan, None)
    batch = Moments(mean if batch_mean is None else batch_mean, batch_cov, 0 if num_values is None else num_values)
    update_running(running, batch, whitening)
    return y


class _Whiten(torch.autograd.Function):
    """Returns y and then, for backward and for running statistics, tensors that autograd does not follow."""

    generate_vmap_rule = True

    # Spelled out, because Dynamo takes the first of *inputs for a context where nothing needs a gradient.
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask, plan, running
    ):
        inputs = Inputs(x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask)
        layout, kernels = plan.layout, plan.kernels
        with no_autocast(x):
            split = _split(inputs, layout)
            statistics = _compute_statistics(split, plan, kernels)
            sample, batch = statistics
            num_values = None
            if batch is not None and isinstance(batch.num_values, Tensor):
                num_values = batch.num_values
                check_valid_count(x, mask, num_values)
            whitening, mean, cov, residuals = kernels.solve(statistics, plan.method, _mixing(split), running)
            y = run_into(kernels.apply, layout, x, split.x, whitening, mean, split.weight, split.bias)
            y = y if mask is None else zero_masked(y, mask)
        # Outputs must not be inputs, nor each other: the mean of a single statistic is the pooled mean.
        is_mixed = mean_logits is not None
        sample_mean, sample_cov, _ = sample if sample is not None and is_mixed else (None, None, None)
        batch_mean, batch_cov, _ = batch if batch is not None and population_mean is None else (None, None, None)
        batch_mean = batch_mean if is_mixed else None
        return y, whitening, mean, cov, sample_mean, sample_cov, batch_mean, batch_cov, num_values, *residuals

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, ctx.plan, _ = inputs
        _, whitening, mean, cov, sample_mean, sample_cov, batch_mean, batch_cov, _, *residuals = output
        is_mixed = Inputs(*tensors).mean_logits is not None
        if not is_mixed:
            batch_cov = None
        elif not ctx.plan.kernels.saves_mixed_cov:
            cov = None
        ctx.mark_non_differentiable(*[tensor for tensor in output[1:] if tensor is not None])
        if not is_transformed():
            # The vmap of older versions cannot batch gradients that are None.
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *tensors, whitening, mean, cov, sample_mean, sample_cov, batch_mean, batch_cov, *residuals
        )

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
        if grad is None:
            return (None,) * 10
        # Read once: activation checkpointing returns each saved tensor only once.
        (
            x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask,
            whitening, mean, cov, sample_mean, sample_cov, batch_mean, batch_cov, *residuals,
        ) = ctx.saved_tensors  # fmt: skip
        inputs = Inputs(x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask)
        saved = Saved(whitening, mean, cov, sample_mean, sample_cov, batch_mean, batch_cov, tuple(residuals))
        with no_autocast(x):
            if torch.is_grad_enabled():
                grads = _backward_differentiably(inputs, ctx.plan, grad)
            else:
                grads = _backward(inputs, ctx.plan, saved, grad, ctx.needs_input_grad[0])
        return *grads, None, None, None, None, None


def _split(inputs: Inputs, layout: Layout) -> Inputs:
    """Return x as ``[N, G, K, J, P]``, γ and β as ``(G, K, J)``; all but x in the dtype of computation."""
    dtype = compute_dtype(inputs.x.dtype)
    x, weight, bias, mean_logits, cov_logits, population_mean, population_cov, mask = inputs
    x = x if mask is None else fill_masked_with_mean(x.to(dtype), mask)
    return Inputs(
        layout.split(x),
        None if weight is None else layout.split_parameter(weight.to(dtype)),
        None if bias is None else layout.split_parameter(bias.to(dtype)),
        None if mean_logits is None else mean_logits.to(dtype),
        None if cov_logits is None else cov_logits.to(dtype),
        None if population_mean is None else population_mean.to(dtype),
        None if population_cov is None else population_cov.to(dtype),
        mask,
    )


def _mixing(inputs: Inputs) -> Mixing | None:
    if inputs.mean_logits is None or inputs.cov_logits is None:
        return None
    return Mixing(inputs.mean_logits, inputs.cov_logits)


def _compute_statistics(split: Inputs, plan: Plan, kernels: Kernels) -> Statistics:
    """Return the moments that the method uses; those of the batch are over all ranks, or the population's."""
    uses_sample, uses_batch = plan.method.uses_sample, plan.method.uses_batch
    if split.population_mean is not None and split.population_cov is not None:
        population = Moments(split.population_mean, split.population_cov, num_values=0)
        sample = kernels.moments(split.x, True, False).sample if uses_sample else None
        return Statistics(sample, population)
    statistics = kernels.moments(split.x, uses_sample, uses_batch)
    if split.mask is not None:
        statistics = rescale_to_valid_count(statistics, split.mask)
    if plan.group is not None and statistics.batch is not None:
        statistics = statistics._replace(batch=reduce_moments(statistics.batch, plan.group, kernels.messages))
    return statistics


def _restore_statistics(split: Inputs, plan: Plan, saved: Saved) -> Statistics:
    """Return the moments of forward over this rank's values; a single statistic is without its unused covariance."""
    method, num_values = plan.method, plan.layout.num_values(split.x)
    if split.mean_logits is None:
        count = num_values if split.mask is None else split.mask.sum().to(saved.mean.dtype)
        moments = Moments(saved.mean, saved.mean.new_empty(0), count)
        return Statistics(moments, None) if method.uses_sample else Statistics(None, moments)
    sample = batch = None
    if saved.sample_mean is not None and saved.sample_cov is not None:
        sample = Moments(saved.sample_mean, saved.sample_cov, num_values)
    if split.population_mean is not None and split.population_cov is not None:
        batch = Moments(split.population_mean, split.population_cov, num_values=0)
    elif saved.batch_mean is not None and saved.batch_cov is not None:
        total = num_values * (split.x.shape[0] if method.uses_sample else 1)
        batch = Moments(saved.batch_mean, saved.batch_cov, total)
    return Statistics(sample, batch)


def _backward(inputs: Inputs, plan: Plan, saved: Saved, grad: Tensor, needs_x: bool) -> list[Tensor | None]:
    """Return the gradients of x, weight, bias and the mixing logits."""
    layout, method, mask = plan.layout, plan.method, inputs.mask
    kernels = kernels_under_transforms(plan.kernels, layout)
    split = _split(inputs, layout)
    x, weight, bias, mixing = split.x, split.weight, split.bias, _mixing(split)
    grad = layout.split(grad if mask is None else zero_masked(grad, mask))
    statistics = _restore_statistics(split, plan, saved)
    whitening, mean, cov = saved.whitening, saved.mean, saved.cov
    cov = pool(statistics, method, mixing)[1] if cov is None else cov
    solution = Solution(whitening, mean, cov, saved.residuals)
    map_grads = kernels.map_gradients(grad, x, whitening, mean, weight, bias)
    is_constant = inputs.population_mean is not None
    grads = kernels.solve_backward(map_grads, solution, statistics, method, weight, bias, mixing, is_constant)
    batch, grad_x = grads.batch, None
    if plan.group is not None:
        # On all ranks, whether or not x needs a gradient on this one, because the others wait for it.
        batch = reduce_gradient(batch, plan.group, kernels.messages)
    if needs_x:
        grad_x = run_into(kernels.input_gradient, layout, inputs.x, grad, x, whitening, weight, grads.sample, batch)
        grad_x = grad_x if mask is None else zero_masked(grad_x, mask)
    return [grad_x, *_join_parameters((grads.weight, grads.bias), layout), *(grads.mixing or (None, None))]


def _whiten_differentiably(inputs: Inputs, plan: Plan, running: Running | None = None) -> Tensor:
    """Compute the same y by differentiable operations, for second derivatives and forward mode."""
    if plan.group is not None:
        raise RuntimeError(
            "expected only first derivatives in reverse mode of statistics that are synchronized over ranks (got "
            "create_graph=True, a gradient of a gradient, or forward mode); set the layers' process_group to None for "
            "those"
        )
    kernels = kernels_under_transforms(plan.kernels, plan.layout)
    split = _split(inputs, plan.layout)
    statistics = _compute_statistics(split, plan, kernels)
    mean, cov = pool(statistics, plan.method, _mixing(split))
    whitening = plan.method.solver.differentiable(cov)
    if running is not None and statistics.batch is not None:
        update_running(running, statistics.batch, whitening)
    y = run_into(kernels.apply, plan.layout, inputs.x, split.x, whitening, mean, split.weight, split.bias)
    return y if inputs.mask is None else zero_masked(y, inputs.mask)


def _backward_differentiably(inputs: Inputs, plan: Plan, grad: Tensor) -> list[Tensor | None]:
    """Return the gradients of x, weight, bias and the logits as a graph, for derivatives of them."""

    def forward(*tensors: Any) -> Tensor:
        return _whiten_differentiably(Inputs._make((*tensors, *inputs[5:])), plan)

    return vjp_of_optional(forward, inputs[:5])(grad)


def whiten_fused(
    x: Tensor,
    plan: Plan,
    fused: FusedKernels,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running | None = None,
) -> Tensor:
    """Whiten ``(N, C, ...)`` by one statistic with one call of the kernels forward and one backward.

    Saved for backward are x, the parameters and the small tensors that the kernels return.
    """
    result: Tensor = _WhitenFused.apply(x, weight, bias, plan, fused, running)
    return result


class _WhitenFused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, plan, fused, running):  # type: ignore[no-untyped-def]
        layout = plan.layout
        ctx.plan, ctx.fused = plan, fused
        split, *arguments = _kernel_arguments(x, weight, bias, plan)
        if plan.kernels.are_operators:
            ctx.save_for_backward(x, weight, bias)
            return fused.whiten(split, *arguments, layout, x)
        whole, out = layout.allocate(x)
        saved = fused.whiten(split, *arguments, out)
        if running is not None:
            mean, cov, whitening = saved
            update_running(running, Moments(mean, cov, layout.num_values(split)), whitening)
        ctx.save_for_backward(x, weight, bias, *saved)
        return layout.finish(whole, out)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight, bias, *saved = ctx.saved_tensors
        layout = ctx.plan.layout
        arguments = _kernel_arguments(x, weight, bias, ctx.plan)
        if ctx.plan.kernels.are_operators and not torch.is_grad_enabled():
            grad_x, *grads = ctx.fused.backward(layout.split(grad), *arguments, layout, x)
            return grad_x, *_join_parameters(grads, layout), None, None, None
        if not may_write_in_place():
            # Second derivatives, or a batch of gradients under vmap.
            plan = ctx.plan._replace(kernels=torch_kernels(layout))
            with no_autocast(x):
                return *_backward_differentiably(Inputs(x, weight, bias), plan, grad)[:3], None, None, None
        whole, out = layout.allocate(x)
        grads = ctx.fused.backward(layout.split(grad), *arguments, tuple(saved), out)
        return layout.finish(whole, out), *_join_parameters(grads, layout), None, None, None


def _join_parameters(grads: Iterable[Tensor | None], layout: Layout) -> list[Tensor | None]:
    return [None if grad is None else layout.join_parameter(grad) for grad in grads]


def _kernel_arguments(x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: Plan) -> tuple[Any, ...]:
    """Return x, γ and β split, ε and the number of steps."""
    layout, solver, dtype = plan.layout, plan.method.solver, compute_dtype(x.dtype)
    assert isinstance(solver, Newton)
    weight = None if weight is None else layout.split_parameter(weight.to(dtype))
    bias = None if bias is None else layout.split_parameter(bias.to(dtype))
    return layout.split(x), weight, bias, plan.method.eps, solver.steps
