"""The affine map of given statistics: what a batch method is at inference."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whitenorm._runtime import no_autocast, present_vjp
from whitenorm.ops.dispatch import Kernels, under_transforms
from whitenorm.ops.layout import Layout, written
from whitenorm.ops.torch.apply import folded
from whitenorm.ops.torch.solve import mean_gradient, of_map
from whitenorm.ops.types import MapGradients


def fixed_map(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    layout: Layout,
    kernels: Kernels,
) -> Tensor:
    """γ·W(x - μ) + β of ``(N, C, ...)``, with matrices ``(1, G, K, K)``, means ``(1, G, K)``, γ and β ``(G, K, 1)``."""
    with no_autocast(x):
        return written(kernels.apply, layout, x, layout.split(x), whitening, mean, weight, bias)


class FixedMap(torch.autograd.Function):
    """The same, differentiably; it keeps all tensors as they came."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        whitening: Tensor,
        mean: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        layout: Layout,
        kernels: Kernels,
    ) -> Tensor:
        return fixed_map(x, whitening, mean, weight, bias, layout, kernels)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[:5])
        ctx.layout, ctx.kernels = inputs[5:]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        saved, layout, kernels = ctx.saved_tensors, ctx.layout, under_transforms(ctx.kernels)
        x, whitening, mean, weight, bias = saved
        if torch.is_grad_enabled():
            return *present_vjp(partial(fixed_map, layout=layout, kernels=kernels), saved)(grad), None, None
        grad_x = None
        grads: tuple[Tensor | None, ...] = (None,) * 4
        with no_autocast(x):
            grad = layout.split(grad)
            if ctx.needs_input_grad[0]:
                matrix = folded(whitening, weight).mT
                grad_x = written(kernels.apply, layout, x, grad, matrix, None, None, None)
            if any(ctx.needs_input_grad[1:5]):
                grads = _small(kernels.map_gradients(grad, layout.split(x), whitening, mean, weight, bias), *saved[1:])
        return grad_x, *grads, None, None


def _small(
    grads: MapGradients, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Of the matrix, the mean, γ and β, from those of the map."""
    grad_whitening, grad_offset, grad_weight, grad_bias = of_map(grads, whitening, weight, bias)
    return grad_whitening, mean_gradient(whitening, grad_offset), grad_weight, grad_bias
