"""Whitening with fixed statistics, an affine map: a batch method in eval mode."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whitenorm._runtime import (
    apply_function,
    compute_dtype,
    is_forward_mode,
    is_tracing,
    no_autocast,
    vjp_of_optional,
)
from whitenorm.ops.dispatch import choose_kernels, kernels_under_transforms
from whitenorm.ops.layout import Layout, channel_groups, run_into
from whitenorm.ops.torch.solve import differentiate_offset, unfold_parameters
from whitenorm.ops.types import Kernels


def apply_fixed_map(
    x: Tensor, mean: Tensor, whitening: Tensor, weight: Tensor | None, bias: Tensor | None, group_size: int
) -> Tensor:
    """Compute γ·W(x - μ) + β of ``(N, C, ...)`` differentiably.

    μ, γ and β are ``(C,)``, W is ``(G, K, K)``. Only these tensors are saved for backward.
    """
    kernels = choose_kernels(x, None, group_size)
    layout = channel_groups(x, group_size, True, kernels.handles_strides)
    dtype = compute_dtype(x.dtype)
    with no_autocast(x):
        weight, bias = [None if v is None else layout.split_parameter(v.to(dtype)) for v in (weight, bias)]
        # Copies of the buffers, because a training step may change them before this step's backward.
        records = torch.is_grad_enabled() and not is_tracing()
        mean = layout.split_parameter(mean.to(dtype, copy=records)).squeeze(-1).unsqueeze(0)
        whitening = whitening.to(dtype, copy=records).unsqueeze(0)
        run = partial(apply_function, _FixedMap) if records and not is_forward_mode() else _apply
        y: Tensor = run(x, whitening, mean, weight, bias, layout, kernels)
        return y


def _apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    layout: Layout,
    kernels: Kernels,
) -> Tensor:
    """Apply the map, with matrices ``(1, G, K, K)``, means ``(1, G, K)``, γ and β ``(G, K, 1)``."""
    with no_autocast(x):
        return run_into(kernels.apply, layout, x, layout.split(x), whitening, mean, weight, bias)


class _FixedMap(torch.autograd.Function):
    generate_vmap_rule = True

    forward = staticmethod(_apply)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:5])
        ctx.layout, ctx.kernels = inputs[5:]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        layout, kernels = ctx.layout, kernels_under_transforms(ctx.kernels, ctx.layout)
        x, whitening, mean, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            run = partial(_apply, layout=layout, kernels=kernels)
            return *vjp_of_optional(run, (x, whitening, mean, weight, bias))(grad), None, None
        grad_x = grad_whitening = grad_mean = grad_weight = grad_bias = None
        with no_autocast(x):
            grad = layout.split(grad)
            if ctx.needs_input_grad[0]:
                matrix = (whitening if weight is None else weight * whitening).mT
                grad_x = run_into(kernels.apply, layout, x, grad, matrix, None, None, None)
            if any(ctx.needs_input_grad[1:5]):
                grads = kernels.map_gradients(grad, layout.split(x), whitening, mean, weight, bias)
                grad_whitening, grad_offset, grad_weight, grad_bias = unfold_parameters(grads, whitening, weight, bias)
                grad_mean = differentiate_offset(whitening, grad_offset)
        return grad_x, grad_whitening, grad_mean, grad_weight, grad_bias, None, None
