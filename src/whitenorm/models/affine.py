"""Affine maps of layers in eval mode: read one, merge it into the layer before it, or make it a layer of its own."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whitenorm._runtime import to_float64
from whitenorm.functional import population_whitening
from whitenorm.layers import BatchWhitening, ConceptWhitening
from whitenorm.models.modules import ChannelMap, Pointwise1d, Pointwise2d, Pointwise3d

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
_POINTWISE: dict[int, type[nn.Module]] = {1: Pointwise1d, 2: Pointwise2d, 3: Pointwise3d}


class Affine(NamedTuple):
    """The map y = matrix @ x + offset of groups of channels, with ``(G, K, K)`` and ``(G, K)``."""

    matrix: Tensor
    offset: Tensor


@torch.no_grad()
def read_affine(layer: Any) -> Affine:
    """Return the map that a batch whitening or BatchNorm applies in eval mode, in float64."""
    if isinstance(layer, BatchWhitening):
        mean, matrix = (None if tensor is None else to_float64(tensor) for tensor in layer._population())
        assert mean is not None
        assert matrix is not None
        if layer.population == "covariance":
            matrix = population_whitening(matrix, layer.eps, layer.solver)
        if isinstance(layer, ConceptWhitening):
            matrix = to_float64(layer.rotation) @ matrix
    else:
        mean = to_float64(layer.running_mean)
        matrix = (to_float64(layer.running_var) + layer.eps).rsqrt()[:, None, None]
    shape = matrix.shape[:2]
    weight, bias = (None if p is None else to_float64(p).reshape(shape) for p in (layer.weight, layer.bias))
    matrix = matrix if weight is None else weight.unsqueeze(-1) * matrix
    centre = (matrix @ mean.reshape(*shape, 1)).squeeze(-1)
    return Affine(matrix, -centre if bias is None else bias - centre)


@torch.no_grad()
def merge_affine(producer: Any, affine: Affine, dense: bool) -> nn.Module:
    """Return a copy of a convolution or linear layer that applies the map to its output.

    If ``dense``, groups of a convolution that are smaller than those of the map are joined.
    """
    new = copy.deepcopy(producer)
    weight = _to_output_rows(producer)
    if isinstance(new, CONVOLUTIONS):
        outputs, size = len(weight), affine.offset.shape[1]
        outputs_per_group = math.lcm(outputs // new.groups, size) if dense else outputs // new.groups
        num_groups = outputs // outputs_per_group
        weight = _join_groups(weight, new.groups, num_groups)
        new.groups = num_groups
    like = producer.weight
    bias = torch.zeros_like(affine.offset)
    if producer.bias is not None:
        bias = producer.bias.double().view_as(affine.offset)
    rows = weight.double().reshape(*affine.matrix.shape[:2], -1)
    _set_output_rows(new, (affine.matrix @ rows).reshape(weight.shape).to(like.dtype))
    offset = (affine.matrix @ bias.unsqueeze(-1)).squeeze(-1) + affine.offset
    new.bias = nn.Parameter(offset.flatten().to(like.dtype), requires_grad=like.requires_grad)
    new.weight.requires_grad_(like.requires_grad)
    return new


def _to_output_rows(module: Any) -> Tensor:
    """Return the weight with the output channels first, ``(O, I / groups, ...)``."""
    weight = module.weight.detach()
    if not isinstance(module, TRANSPOSED):
        return weight
    inputs, outputs, *kernel = weight.shape
    groups = module.groups
    return weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2).flatten(0, 1)


def _set_output_rows(module: Any, rows: Tensor) -> None:
    if isinstance(module, TRANSPOSED):
        rows = rows.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    # Keep the memory format of the old weight.
    weight = torch.empty_like(module.weight if rows.shape == module.weight.shape else rows)
    module.weight = nn.Parameter(weight.copy_(rows))


def _join_groups(weight: Tensor, groups: int, num_joined: int) -> Tensor:
    """Return the weight ``(O, I / groups, ...)`` of a grouped convolution for fewer groups, filled up with zeros."""
    if groups == num_joined:
        return weight
    ratio = groups // num_joined
    outputs, inputs, *kernel = weight.shape
    blocks = weight.reshape(groups, outputs // groups, inputs, *kernel)
    joined = weight.new_zeros(groups, outputs // groups, ratio, inputs, *kernel)
    for group in range(groups):
        joined[group, :, group % ratio] = blocks[group]
    return joined.reshape(outputs, ratio * inputs, *kernel)


@torch.no_grad()
def make_pointwise(layer: BatchWhitening, dimensions: int | None, model: nn.Module) -> nn.Module:
    """Make a linear layer or grouped 1×1 convolution of a whitening layer's map.

    It has the model's dtype, since statistics may be wider. If the model mixes dtypes, the input's may differ from the
    layer's, so the map keeps the dtype of the statistics and casts.

    Args:
        layer: the whitening layer.
        dimensions: spatial dimensions of its input; 0 for vectors, None if unknown.
        model: the model with the layer.
    """
    matrix, offset = read_affine(layer)
    groups, size = offset.shape
    channels = groups * size
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if len(dtypes) > 1:
        dimensions = None
    if dimensions == 0:
        module: Any = nn.Linear(channels, channels)
        weight = torch.block_diag(*matrix)
    else:
        kind = ChannelMap if dimensions is None else _POINTWISE[dimensions]
        module = kind(channels, channels, 1, groups=groups)
        weight = matrix.reshape(module.weight.shape)
    statistics = layer._buffers["running_mean"]
    assert statistics is not None
    dtype = dtypes.pop() if len(dtypes) == 1 else statistics.dtype
    requires_grad = layer.weight is None or layer.weight.requires_grad
    module.weight = nn.Parameter(weight.to(dtype), requires_grad=requires_grad)
    module.bias = nn.Parameter(offset.flatten().to(dtype), requires_grad=requires_grad)
    return module
