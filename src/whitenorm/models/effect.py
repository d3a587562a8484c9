"""The effect of a conversion on the output of a trained model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from whitenorm._runtime import to_float64
from whitenorm.layers import BatchWhitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.models.fold import Affine, affine_of
from whitenorm.models.norms import BATCH, Norm, Population
from whitenorm.models.parts import Activated

# The largest difference, in standard deviations of the output, that counts as rounding.
_TOLERANCE = 1e-3
_MATRICES = ("running_whitening", "running_cov")


@torch.no_grad()
def is_trained(module: nn.Module) -> bool:
    """Whether a norm has seen data: batches are counted, or the values of γ, β or the statistics differ by channel.

    Initial values are the same for all channels. Nothing is known of a norm on the meta device.
    """
    tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
    if any(tensor.is_meta for tensor in tensors.values()):
        return False
    batches = tensors.get("num_batches_tracked")
    vectors = [tensor for name, tensor in tensors.items() if name not in _MATRICES and tensor.numel() > 1]
    return (batches is not None and bool(batches > 0)) or any(bool((v != v.flatten()[0]).any()) for v in vectors)


def describe_effect(new: nn.Module, norm: Norm, old: str) -> str:
    """Say how the output in eval mode changes where a layer takes a trained norm's place; empty if it stays."""
    layer = new[0] if isinstance(new, Activated) else new
    if _keeps_output(layer, norm):
        return ""
    keeps_population = isinstance(layer, (PopulationWhitening, BATCH)) and bool(layer.track_running_stats)
    remedy = "call recalibrate_(model, batches), then fine-tune" if keeps_population else "fine-tune the model"
    return f"{type(layer).__name__} computes another function than {old}: {remedy}"


@torch.no_grad()
def _keeps_output(layer: nn.Module, norm: Norm) -> bool:
    """Whether the maps of two population statistics are the same, for inputs of the old population."""
    population = norm.population
    fixed = isinstance(layer, (BatchWhitening, BATCH)) and bool(layer.track_running_stats)
    mixed = isinstance(norm.module, PopulationWhitening) and not isinstance(norm.module, BatchWhitening)
    if population is None or mixed or not fixed:
        return False
    old, new = _map_of(norm, population), affine_of(layer)
    size = math.lcm(old.offset.shape[1], new.offset.shape[1])
    old, new = _regroup(old, size), _regroup(new, size)
    mean = population.mean.reshape(-1, size, 1)
    deviations = _deviations(population).reshape(-1, 1, size)
    gain = (old.matrix * deviations).abs().sum(-1)
    error = ((new.matrix - old.matrix) * deviations).abs().sum(-1)
    centre = (new.matrix @ mean - old.matrix @ mean).squeeze(-1) + new.offset - old.offset
    return bool(((error + centre.abs()).max() <= _TOLERANCE * gain.max()).item())


def _map_of(norm: Norm, population: Population) -> Affine:
    if isinstance(norm.module, BatchWhitening):
        return affine_of(norm.module)
    scale = population.cov.flatten().rsqrt()
    scale = scale if norm.weight is None else scale * to_float64(norm.weight)
    centre = scale * population.mean
    return Affine(scale[:, None, None], (-centre if norm.bias is None else to_float64(norm.bias) - centre)[:, None])


def _regroup(affine: Affine, size: int) -> Affine:
    """The same map with larger groups of channels."""
    _, old, _ = affine.matrix.shape
    blocks = affine.matrix.unflatten(0, (-1, size // old)).movedim(1, -1)
    # From the blocks (G, K, K, n) to the diagonals of (G, n, K, n, K).
    matrix = torch.diag_embed(blocks, dim1=1, dim2=3).reshape(-1, size, size)
    return Affine(matrix, affine.offset.reshape(-1, size))


def _deviations(population: Population) -> Tensor:
    return population.cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
