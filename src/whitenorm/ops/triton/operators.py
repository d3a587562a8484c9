"""The steps as operators of torch, which ``torch.compile`` calls as they are.

A compiler cannot trace how a launch is planned, so that each step is an opaque operator for it, with a function that
says what it returns. An operator returns new tensors only, none of which shares memory with another; what remains, such
as views and sums of small vectors, is traced. Derivatives are those of :mod:`whitenorm.ops.whiten`, so that no operator
has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whitenorm.ops.layout import Layout
from whitenorm.ops.triton import apply as apply_step
from whitenorm.ops.triton import input_gradient as input_gradient_step
from whitenorm.ops.triton import map_gradients as map_gradients_step
from whitenorm.ops.triton import moments as moments_step
from whitenorm.ops.triton import per_sample
from whitenorm.ops.triton import solve as solve_step
from whitenorm.ops.triton import solve_backward as solve_backward_step
from whitenorm.ops.types import (
    AffineGrad,
    FusedKernels,
    MapGradients,
    Method,
    Mixing,
    Moments,
    Running,
    Solution,
    Statistics,
    StatisticsGrads,
)
from whitenorm.solvers.newton import Newton

_LIBRARY = torch.library.Library("whitenorm", "DEF")
# The kernels take tensors of any strides. Without the second tag, which older versions lack, a compiler copies those
# that it has laid out anew.
_TAGS = [getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "flexible_layout") if hasattr(torch.Tag, name)]


def _define(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator of a function, with one that returns tensors of the same shapes and strides."""

    def define(function: Callable[..., Any]) -> Any:
        name = schema.split("(")[0]
        _LIBRARY.define(schema, tags=_TAGS)
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"whitenorm::{name}", fake, lib=_LIBRARY)
        return getattr(torch.ops.whitenorm, name).default

    return define


def _flatten_layout(layout: Layout) -> list[int]:
    return [int(value) for value in layout]


def _restore_layout(flat: list[Any]) -> Layout:
    return Layout(*flat)


def _run_into(step: Callable[..., Any], *arguments: Any) -> Tensor:
    """Run a step whose result has the shape and format of the last argument, as a layout before it tells."""
    *inputs, flat, like = arguments
    layout = _restore_layout(flat)
    whole, out = layout.allocate(like)
    step(*inputs, out)
    return layout.finish(whole, out)


def _new(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _fake_moments(x: Tensor, sample: bool, batch: bool) -> list[Tensor]:
    n, g, k, *_ = x.shape
    problems = [n] * sample + [1] * batch
    return [_new(x, *shape) for b in problems for shape in ((b, g, k), (b, g, k, k))]


@_define("moments(Tensor x, bool sample, bool batch) -> Tensor[]", _fake_moments)
def _moments(x: Tensor, sample: bool, batch: bool) -> list[Tensor]:
    statistics = moments_step.moments(x, sample, batch)
    return [tensor for moments in statistics if moments is not None for tensor in moments[:2]]


def moments(x: Tensor, sample: bool, batch: bool) -> Statistics:
    results = _moments(x, sample, batch)
    count = x.shape[3] * x.shape[4]
    of_sample = Moments(results[0], results[1], count) if sample else None
    return Statistics(of_sample, Moments(results[-2], results[-1], x.shape[0] * count) if batch else None)


# The arguments of both solves that describe the statistics and the method.
_METHOD = (
    "Tensor? sample_mean, Tensor? sample_cov, Tensor? batch_mean, Tensor? batch_cov, Tensor? mean_logits, "
    "Tensor? cov_logits, str statistics, int steps, float lost_trace, float eps, float scale"
)


def _flatten_method(statistics: Statistics, method: Method, mixing: Mixing | None) -> tuple[Any, ...]:
    solver: Any = method.solver
    tensors = [None if moments is None else moments[:2] for moments in statistics]
    flat = [tensor for pair in tensors for tensor in (pair or (None, None))]
    names = ",".join(method.statistics)
    return *flat, *(mixing or (None, None)), names, solver.steps, solver._lost_trace, method.eps, method.scale


def _restore_method(
    sample_mean: Tensor | None,
    sample_cov: Tensor | None,
    batch_mean: Tensor | None,
    batch_cov: Tensor | None,
    mean_logits: Tensor | None,
    cov_logits: Tensor | None,
    statistics: str,
    steps: int,
    lost_trace: float,
    eps: float,
    scale: float,
) -> tuple[Statistics, Method, Mixing | None]:
    """Undo :func:`_flatten_method`; the numbers of values, which the solves do not read, are zero."""
    sample = None if sample_mean is None or sample_cov is None else Moments(sample_mean, sample_cov, 0)
    batch = None if batch_mean is None or batch_cov is None else Moments(batch_mean, batch_cov, 0)
    mixing = None if mean_logits is None or cov_logits is None else Mixing(mean_logits, cov_logits)
    solver = Newton(steps)
    solver._lost_trace = lost_trace
    method = Method(tuple(statistics.split(",")), solver, eps, scale, sample is not None, batch is not None)
    return Statistics(sample, batch), method, mixing


def _fake_solve(sample_mean: Any, sample_cov: Any, batch_mean: Any, batch_cov: Any, *_: Any) -> Any:
    mean, cov = (batch_mean, batch_cov) if sample_mean is None else (sample_mean, sample_cov)
    return _new(cov, *cov.shape), _new(mean, *mean.shape), _new(cov, *cov.shape)


@_define(f"solve({_METHOD}) -> (Tensor, Tensor, Tensor)", _fake_solve)
def _solve(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return solve_step.solve(*_restore_method(*arguments), None)[:3]


def solve(statistics: Statistics, method: Method, mixing: Mixing | None, running: Running | None) -> Solution:
    assert running is None, "compilers update running statistics after the autograd function"
    return Solution(*_solve(*_flatten_method(statistics, method, mixing)))


def _fake_apply(x: Tensor, whitening: Tensor, mean: Any, weight: Any, bias: Any, layout: Any, like: Tensor) -> Tensor:
    return _restore_layout(layout).allocate(like)[0]


@_define(
    "apply(Tensor x, Tensor whitening, Tensor? mean, Tensor? weight, Tensor? bias, int[] layout, Tensor like"
    ") -> Tensor",
    _fake_apply,
)
def _apply(*arguments: Any) -> Tensor:
    return _run_into(apply_step.apply, *arguments)


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    layout: Layout,
    like: Tensor,
) -> Tensor:
    result: Tensor = _apply(x, whitening, mean, weight, bias, _flatten_layout(layout), like)
    return result


def _fake_map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, has_bias: bool
) -> list[Tensor]:
    samples, _, features, channels, _ = x.shape
    sums = [_new(x, mean.numel() * (features + 1))]
    if channels > 1 and (weight is not None or has_bias):
        sums.append(_new(x, 1 if weight is None else 2, samples, features, channels))
    return sums


@_define(
    "map_gradients(Tensor grad, Tensor x, Tensor whitening, Tensor mean, Tensor? weight, bool has_bias) -> Tensor[]",
    _fake_map_gradients,
)
def _map_gradients(*arguments: Any) -> list[Tensor]:
    total, channel_sums = map_gradients_step.sum_gradients(*arguments)
    return [total] if channel_sums is None else [total, channel_sums]


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    sums = _map_gradients(grad, x, whitening, mean, weight, bias is not None)
    return map_gradients_step.split_gradients(sums[0], sums[1] if len(sums) == 2 else None, whitening, bias)


def _fake_solve_backward(
    grad_matrix: Tensor,
    grad_offset: Tensor,
    whitening: Tensor,
    mean: Tensor,
    cov: Tensor,
    weight: Tensor | None,
    batch_is_constant: bool,
    *method: Any,
) -> list[Tensor]:
    sample_mean, _, batch_mean, _, *logits = method[:6]
    vectors = [] if weight is None else [_new(mean, 2, *mean.shape)]
    if logits[0] is None:
        if sample_mean is None and batch_is_constant:
            return vectors
        return [_new(cov, *cov.shape), _new(mean, *mean.shape), *vectors]
    grads = [_new(cov, *cov.shape), _new(mean, *mean.shape)] if sample_mean is not None else []
    if batch_mean is not None and not batch_is_constant:
        _, groups, features = mean.shape
        grads += [_new(cov, 1, groups, features, features), _new(mean, 1, groups, features)]
    return [*grads, *[torch.empty_like(logit) for logit in logits], *vectors]


@_define(
    "solve_backward(Tensor grad_matrix, Tensor grad_offset, Tensor whitening, Tensor mean, Tensor cov, "
    f"Tensor? weight, bool batch_is_constant, {_METHOD}) -> Tensor[]",
    _fake_solve_backward,
)
def _solve_backward(
    grad_matrix: Tensor,
    grad_offset: Tensor,
    whitening: Tensor,
    mean: Tensor,
    cov: Tensor,
    weight: Tensor | None,
    batch_is_constant: bool,
    *method: Any,
) -> list[Tensor]:
    statistics, restored, mixing = _restore_method(*method)
    grads, vectors = solve_backward_step.differentiate(
        MapGradients(grad_matrix, grad_offset),
        Solution(whitening, mean, cov),
        statistics,
        restored,
        weight,
        mixing,
        batch_is_constant,
    )
    affine = [tensor for grad in (grads.sample, grads.batch) if grad is not None for tensor in grad[:2]]
    return [*affine, *(grads.mixing or ()), *([] if vectors is None else [vectors])]


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
    scale = solve_backward_step.scale_of_rows(grads, weight)
    results = list(
        _solve_backward(
            grads.matrix,
            grads.offset,
            solution.whitening,
            solution.mean,
            solution.cov,
            scale,
            batch_is_constant,
            *_flatten_method(statistics, method, mixing),
        )
    )
    sample = batch = grad_mixing = None
    if method.uses_sample and statistics.sample is not None:
        sample = AffineGrad(results.pop(0), results.pop(0), statistics.sample.mean, statistics.sample.num_values)
    if method.uses_batch and statistics.batch is not None and not batch_is_constant:
        batch = AffineGrad(results.pop(0), results.pop(0), statistics.batch.mean, statistics.batch.num_values)
    if mixing is not None:
        grad_mixing = Mixing(results.pop(0), results.pop(0))
    statistics_grads = StatisticsGrads(sample, batch, None, None, grad_mixing)
    return solve_backward_step.add_parameters(statistics_grads, grads, None if scale is None else results[0], bias)


def _fake_input_gradient(*arguments: Any) -> Tensor:
    return _restore_layout(arguments[-2]).allocate(arguments[-1])[0]


@_define(
    "input_gradient(Tensor grad, Tensor x, Tensor whitening, Tensor? weight, "
    "Tensor? sample_matrix, Tensor? sample_offset, Tensor? sample_mean, SymInt sample_count, "
    "Tensor? batch_matrix, Tensor? batch_offset, Tensor? batch_mean, SymInt batch_count, Tensor? count_over_ranks, "
    "int[] layout, Tensor like) -> Tensor",
    _fake_input_gradient,
)
def _input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample_matrix: Tensor | None,
    sample_offset: Any,
    sample_mean: Any,
    sample_count: int,
    batch_matrix: Tensor | None,
    batch_offset: Any,
    batch_mean: Any,
    batch_count: int,
    count_over_ranks: Tensor | None,
    layout: list[int],
    like: Tensor,
) -> Tensor:
    sample = batch = None
    if sample_matrix is not None:
        sample = AffineGrad(sample_matrix, sample_offset, sample_mean, sample_count)
    if batch_matrix is not None:
        count = batch_count if count_over_ranks is None else count_over_ranks
        batch = AffineGrad(batch_matrix, batch_offset, batch_mean, count)
    return _run_into(input_gradient_step.input_gradient, grad, x, whitening, weight, sample, batch, layout, like)


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    layout: Layout,
    like: Tensor,
) -> Tensor:
    sample = sample or AffineGrad(None, None, None, 0)  # type: ignore[arg-type]
    batch = batch or AffineGrad(None, None, None, 0)  # type: ignore[arg-type]
    count, over_ranks = (0, batch.num_values) if isinstance(batch.num_values, Tensor) else (batch.num_values, None)
    result: Tensor = _input_gradient(
        grad, x, whitening, weight, *sample, *batch[:3], count, over_ranks, _flatten_layout(layout), like
    )
    return result


# For run_into.
apply.allocate = input_gradient.allocate = True  # type: ignore[attr-defined]


def _fake_whiten_samples(*arguments: Any) -> Tensor:
    return _restore_layout(arguments[-2]).allocate(arguments[-1])[0]


@_define(
    "whiten_samples(Tensor x, Tensor? weight, Tensor? bias, float eps, int steps, int[] layout, Tensor like) -> Tensor",
    _fake_whiten_samples,
)
def _whiten_samples(*arguments: Any) -> Tensor:
    return _run_into(per_sample.whiten_samples, *arguments)


def whiten_samples(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int, layout: Layout, like: Tensor
) -> Tensor:
    result: Tensor = _whiten_samples(x, weight, bias, eps, steps, _flatten_layout(layout), like)
    return result


def _fake_whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    layout: list[int],
    like: Tensor,
) -> list[Tensor]:
    small = [_new(x, 1, *x.shape[2:4]) for tensor in (weight, bias) if tensor is not None]
    return [_restore_layout(layout).allocate(like)[0], *small]


@_define(
    "whiten_samples_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, float eps, int steps, int[] layout, "
    "Tensor like) -> Tensor[]",
    _fake_whiten_samples_backward,
)
def _whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    layout: list[int],
    like: Tensor,
) -> list[Tensor]:
    whole, out = _restore_layout(layout).allocate(like)
    small = per_sample.whiten_samples_backward(grad, x, weight, bias, eps, steps, (), out)
    return [_restore_layout(layout).finish(whole, out), *[tensor for tensor in small if tensor is not None]]


def whiten_samples_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    steps: int,
    layout: Layout,
    like: Tensor,
) -> tuple[Tensor | None, ...]:
    results = list(_whiten_samples_backward(grad, x, weight, bias, eps, steps, _flatten_layout(layout), like))
    return results.pop(0), *[None if tensor is None else results.pop(0) for tensor in (weight, bias)]


samples = FusedKernels(per_sample.is_supported, whiten_samples, whiten_samples_backward)  # type: ignore[arg-type]
