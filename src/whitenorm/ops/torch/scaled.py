"""The passes for features of several channels each, as in Group Whitening: γ and β come after the map."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.ops.torch.passes import (
    Term,
    Workspace,
    add_affine_grads,
    flatten_features,
    multiply_into,
    needs_centring,
    sum_maps,
    sum_outer,
)
from whitenorm.ops.types import AffineGrad, MapGradients


class Scale(NamedTuple):
    """γ and β as ``(K, J, 1)``, which vary within a row and so do not fold into its matrix."""

    weight: Tensor | None
    bias: Tensor | None

    def split(self, y: Tensor) -> Tensor:
        """Return ``y[N, 1, K, L]`` as ``(N, 1, K, J, P)``."""
        vector = self.bias if self.weight is None else self.weight
        assert vector is not None
        channels = vector.shape[1]
        return y.view(*y.shape[:3], channels, y.shape[3] // channels)

    def apply(self, y: Tensor) -> Tensor:
        """Return γ·y + β."""
        split = self.split(y)
        split = split if self.weight is None else split * self.weight
        return (split if self.bias is None else split + self.bias).reshape(y.shape)

    def apply_(self, y: Tensor, offset: Tensor | None) -> None:
        """Compute y ← γ·(y + offset) + β in place."""
        split, shift = self.split(y), self.bias
        if offset is not None:
            offset = offset.unsqueeze(-1)
            offset = offset if self.weight is None else offset * self.weight
            shift = offset if shift is None else offset + shift
        # Two passes, each of which is vectorized, unlike addcmul with broadcast operands.
        if self.weight is not None:
            split.mul_(self.weight)
        if shift is not None:
            split.add_(shift)

    def multiply(self, grad: Tensor, workspace: Workspace) -> Tensor:
        """Return γ·grad in the dtype of computation."""
        if self.weight is None:
            return grad.to(workspace.dtype)
        out = workspace.buffer("scaled", grad)
        if out is None:
            return (self.split(grad) * self.weight).reshape(grad.shape)
        torch.mul(self.split(grad), self.weight, out=self.split(out))
        return out


def make_scale(weight: Tensor | None, bias: Tensor | None) -> Scale | None:
    """Return γ and β ``(1, K, J)`` as a scale, or None if both are None."""
    if weight is None and bias is None:
        return None
    return Scale(*[None if tensor is None else tensor.squeeze(0).unsqueeze(-1) for tensor in (weight, bias)])


def apply(
    x: Tensor,
    whitening: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    offset = shift = None
    if mean is not None and needs_centring(x, whitening, mean):
        shift = mean.unsqueeze(-1)
    elif mean is not None:
        offset = -(whitening @ mean.unsqueeze(-1))
    return sum_maps([Term(whitening, x, shift)], offset, make_scale(weight, bias), out)


def map_gradients(
    grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
) -> MapGradients:
    if needs_centring(x, whitening, mean):
        return differentiate_map(grad, x, whitening, mean.unsqueeze(-1), None, weight, bias)
    return differentiate_map(grad, x, whitening, None, mean, weight, bias)


def differentiate_map(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    shift: Tensor | None,
    mean: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
) -> MapGradients:
    """Return the gradients of γ·W(x - shift) + β, or of γ·(W·x - W·mean) + β where a mean is folded into the map."""
    grad, x, scale = flatten_features(grad), flatten_features(x), make_scale(weight, bias)
    workspace = Workspace(x)
    matrices, offsets, weights, biases = [], [], [], []
    for block in workspace.blocks(x, split_positions=False):
        centred, matrix = workspace.load(block, x, "term", shift), block.take_samples(whitening)
        grad_block = workspace.as_batched(block.take(grad), "grad")
        if scale is None:
            matrices.append(sum_outer(grad_block, centred, pooled=False))
            offsets.append(grad_block.sum(-1))
            continue
        sums = _sum_channels(grad_block, scale)
        biases.append(sums.sum((0, 1)))
        if scale.weight is None:
            matrices.append(sum_outer(grad_block, centred, pooled=False))
            offsets.append(sums.sum(-1))
            continue
        grad_matrix, products = _multiply_scaled(grad_block, centred, matrix, scale, workspace)
        matrices.append(grad_matrix)
        offsets.append((sums * scale.weight.squeeze(-1)).sum(-1))
        if mean is not None:
            products = products - sums * (matrix @ block.take_samples(mean).unsqueeze(-1))
        weights.append(products.sum((0, 1)))
    matrix, offset = torch.cat(matrices), torch.cat(offsets)
    return MapGradients(
        matrix if mean is None else matrix - offset.unsqueeze(-1) * mean.unsqueeze(-2),
        offset,
        weight=None if weight is None else torch.stack(weights).sum(0, keepdim=True),
        bias=None if bias is None else torch.stack(biases).sum(0, keepdim=True),
    )


def input_gradient(
    grad: Tensor,
    x: Tensor,
    whitening: Tensor,
    weight: Tensor | None,
    sample: AffineGrad | None,
    batch: AffineGrad | None,
    out: Tensor | None,
) -> Tensor:
    return add_affine_grads(Term(whitening.mT, grad, scale=make_scale(weight, None)), x, whitening, sample, batch, out)


def _sum_channels(values: Tensor, scale: Scale) -> Tensor:
    """Return the sums over the positions of each channel, ``(N, 1, K, J)``."""
    split = scale.split(values)
    return split.squeeze(-1) if split.shape[-1] == 1 else split.sum(-1)


def _multiply_scaled(
    grad: Tensor, x: Tensor, whitening: Tensor, scale: Scale, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    """Return (γ·grad)·xᵀ as ``(N, 1, K, K)``, and grad times W·x summed over each channel as ``(N, 1, K, J)``.

    Both follow from grad·xᵀ of each channel of the groups, if channels are long enough for such matrices to be small.
    Otherwise, as for vectors, W·x is computed again.
    """
    assert scale.weight is not None
    if scale.split(x).shape[-1] < 2 * x.shape[2]:
        out = workspace.buffer("product", x)
        if out is None:
            product = whitening @ x
        else:
            multiply_into(out, whitening, x)
            product = out
        product = torch.mul(product, grad, out=out)
        return sum_outer(scale.multiply(grad, workspace), x, pooled=False), _sum_channels(product, scale)
    channels = zip(scale.split(grad).unbind(3), scale.split(x).unbind(3), strict=True)
    matrices = torch.stack([sum_outer(g, values, pooled=False) for g, values in channels], 2)  # N, 1, J, K, K
    products = (matrices * whitening.unsqueeze(2)).sum(-1).mT
    return (matrices * scale.weight.transpose(0, 1)).sum(2), products
