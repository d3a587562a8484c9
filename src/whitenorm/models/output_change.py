"""Predict how a conversion changes the eval output of a trained model, without running it."""

from __future__ import annotations

import math

import torch
from torch import nn

from whitenorm._runtime import to_float64
from whitenorm.layers import BatchWhitening, PopulationWhitening
from whitenorm.models.affine import Affine, read_affine
from whitenorm.models.modules import Activated
from whitenorm.models.norms import BATCH_NORM, Norm, Population, keeps_population

# The largest difference, in standard deviations of the output, that counts as rounding.
_TOLERANCE = 1e-3
_MATRICES = ("running_whitening", "running_cov")


@torch.no_grad()
def is_trained(module: nn.Module) -> bool:
    """Return whether a norm has counted batches, or has values of γ, β or statistics that differ between channels.

    Initial values are the same for all channels. A norm on the meta device counts as not trained.
    """
    tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
    if any(tensor.is_meta for tensor in tensors.values()):
        return False
    num_batches = tensors.get("num_batches_tracked")
    if num_batches is not None and bool((num_batches > 0).any()):
        return True
    vectors = [tensor for name, tensor in tensors.items() if name not in _MATRICES and tensor.numel() > 1]
    return any(bool((vector != vector.flatten()[0]).any()) for vector in vectors)


def describe_output_change(new: nn.Module, norm: Norm, old: str) -> str:
    """Describe how the eval output changes when a layer replaces a trained norm; empty if it does not.

    Args:
        new: the layer.
        norm: the norm that it replaces.
        old: the norm's class, for the message.
    """
    layer = new[0] if isinstance(new, Activated) else new
    if _keeps_output(layer, norm):
        return ""
    remedy = "call recalibrate_(model, batches), then fine-tune" if keeps_population(layer) else "fine-tune the model"
    return f"{type(layer).__name__} computes another function than {old}: {remedy}"


@torch.no_grad()
def _keeps_output(layer: nn.Module, norm: Norm) -> bool:
    """Return whether layer and norm apply the same map in eval mode, for inputs from the norm's population."""
    population = norm.population
    is_fixed = isinstance(layer, (BatchWhitening, BATCH_NORM)) and bool(layer.track_running_stats)
    is_mixed = isinstance(norm.module, PopulationWhitening) and not isinstance(norm.module, BatchWhitening)
    if population is None or is_mixed or not is_fixed:
        return False
    old, new = _read_norm_affine(norm, population), read_affine(layer)
    size = math.lcm(old.offset.shape[1], new.offset.shape[1])
    old, new = _regroup(old, size), _regroup(new, size)
    mean = population.mean.reshape(-1, size, 1)
    deviations = population.cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().reshape(-1, 1, size)
    gain = (old.matrix * deviations).abs().sum(-1)
    error = ((new.matrix - old.matrix) * deviations).abs().sum(-1)
    centre = (new.matrix @ mean - old.matrix @ mean).squeeze(-1) + new.offset - old.offset
    return bool(((error + centre.abs()).max() <= _TOLERANCE * gain.max()).item())


def _read_norm_affine(norm: Norm, population: Population) -> Affine:
    """Return a norm's map in eval mode; frozen norms of other libraries have no standard attributes to read."""
    if isinstance(norm.module, BatchWhitening):
        return read_affine(norm.module)
    scale = population.cov.flatten().rsqrt()
    scale = scale if norm.weight is None else scale * to_float64(norm.weight)
    centre = scale * population.mean
    return Affine(scale[:, None, None], (-centre if norm.bias is None else to_float64(norm.bias) - centre)[:, None])


def _regroup(affine: Affine, size: int) -> Affine:
    """Return the same map with larger groups of channels."""
    _, old_size, _ = affine.matrix.shape
    blocks = affine.matrix.unflatten(0, (-1, size // old_size)).movedim(1, -1)  # G, K, K, n
    matrix = torch.diag_embed(blocks, dim1=1, dim2=3).reshape(-1, size, size)  # G, n·K, n·K
    return Affine(matrix, affine.offset.reshape(-1, size))
