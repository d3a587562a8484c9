"""Samples that fit into one program of a GPU, such as tokens: all six steps in one kernel each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import compute_dtype, no_autocast
from whitenorm.ops.layout import written
from whitenorm.ops.whiten import Plan, differentiable_backward


def whiten_samples(x: Tensor, plan: Plan, kernels: Any, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Whiten ``(N, C, ...)`` by each sample's own statistics, differentiably; nothing is kept for backward but x."""
    result: Tensor = _WhitenSamples.apply(x, weight, bias, plan, kernels)
    return result


class _WhitenSamples(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, plan, kernels):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight, bias)
        ctx.plan, ctx.kernels = plan, kernels
        return written(kernels.whiten_samples, plan.layout, x, *_prepared(plan, x, weight, bias))

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight, bias = ctx.saved_tensors
        plan, layout = ctx.plan, ctx.plan.layout
        if torch.is_grad_enabled():
            with no_autocast(x):
                return *differentiable_backward(x, weight, bias, plan, grad), None, None
        whole, out = layout.empty(x)
        given = _prepared(plan, x, weight, bias)
        small = ctx.kernels.whiten_samples_backward(layout.split(grad), *given, out)
        return layout.fill(whole, out), *[None if v is None else layout.vector(v) for v in small], None, None


def _prepared(plan: Plan, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Any, ...]:
    layout, method = plan.layout, plan.method
    wide = compute_dtype(x.dtype)
    small = [None if vector is None else layout.parameter(vector.to(wide)) for vector in (weight, bias)]
    return layout.split(x), *small, method.eps, method.solver.steps  # type: ignore[attr-defined]
