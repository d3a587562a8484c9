"""A new layer in the place of a norm: what it takes over from it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.layers.base import PopulationWhitening, Whitening
from whitenorm.models.layers import LayerLike, Made, Options, of_channels, of_function, of_tokens, options_of
from whitenorm.models.norms import BATCH, Norm, Population
from whitenorm.models.parts import Activated, put_before
from whitenorm.ops.check import root_divisor

_DIMENSIONS = {kind.__name__: kind for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)}
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


def make(layer: LayerLike, norm: Norm, options: Options, name: str, like: Tensor) -> Made:
    """The new layer in a norm's place: its parameters, population, device, dtype, mode, momentum and activation.

    ``like`` is a tensor of the norm's device and dtype; see :func:`nearest_tensors`.
    """
    new, note = _new(layer, norm, options)
    new.to(device=like.device, dtype=like.dtype)
    if not any(tensor.is_floating_point() for tensor in _tensors(new)):
        new._like = torch.empty(0, dtype=like.dtype, device=like.device)
    _take_parameters(new, norm)
    _take_population(new, norm)
    take_origin(new, norm, name)
    new.train(norm.module.training)
    placed = put_before(Activated, new, *norm.activation) if norm.activation else new
    return Made(placed, note or _lost(new, norm))


def nearest_tensors(model: nn.Module) -> dict[nn.Module, Tensor]:
    """Map each module to a floating-point tensor of its device and dtype.

    The tensor is the module's own, otherwise that of the nearest module registered before it, otherwise the first one
    of the model. A conversion leaves one at layers without any, for models that have no other.
    """
    first = next(filter(Tensor.is_floating_point, (*model.parameters(), *model.buffers())), None)
    nearest: dict[nn.Module, Tensor] = {}
    for module in model.modules():
        first = next(filter(Tensor.is_floating_point, _tensors(module)), first)
        nearest[module] = getattr(module, "_like", torch.empty(0)) if first is None else first
    return nearest


def norm_before(linear: nn.Linear) -> Norm:
    """A BatchNorm of a linear layer's input that changes nothing: without ε its population is exactly the identity."""
    weight = linear.weight
    norm = nn.BatchNorm1d(linear.in_features, eps=0.0, device=weight.device, dtype=weight.dtype)
    return Norm(norm.train(linear.training), "batch", (linear.in_features,))


def take_origin(new: nn.Module, norm: Norm, name: str) -> None:
    """Let a layer know its name in the model, and the norm it was made from: its class, ε and process group."""
    old = norm.module
    if isinstance(new, Whitening):
        new.name_in_model = name
        new.replaces = getattr(old, "replaces", "") or type(old).__name__
        eps = norm.eps if norm.kind == "batch" and norm.eps is not None else new.batch_norm_eps
        new.batch_norm_eps = getattr(old, "batch_norm_eps", eps)
    if isinstance(new, PopulationWhitening):
        _take_process_group(new, old)


def _new(layer: LayerLike, norm: Norm, options: Options) -> Made:
    if not isinstance(layer, str):
        return Made(of_function(layer, math.prod(norm.shape)))
    if norm.kind == "unknown":
        kind = type(norm.module)
        raise ValueError(
            f"expected a norm whose input's layout is known (got {kind.__module__}.{kind.__qualname__}, which has a "
            "forward of its own, or cannot be tried on the meta device); leave it out with a filter, "
            "where=lambda module, name: ..., or make the layer yourself"
        )
    if norm.of_tokens:
        return of_tokens(layer, norm, options, _affine(norm))
    inherited = _inherited(layer, norm)
    if layer != "bn":
        return of_channels(layer, norm.shape[0], options, inherited)
    batch_norm, more = _batch_norm(norm)
    return of_channels(layer, norm.shape[0], options, {**inherited, **more}, batch_norm)


def _affine(norm: Norm) -> Options:
    affine = norm.weight is not None or norm.bias is not None
    return {"affine": True, "bias": False} if affine and norm.bias is None else {"affine": affine}


def _inherited(layer: str, norm: Norm) -> Options:
    """The options that follow from the norm, unless the call says otherwise."""
    options = _affine(norm)
    if layer in ("gw", "gn") and norm.kind == "group":
        options["num_groups"] = norm.module.num_groups
    elif layer in ("gw", "gn") and norm.of_vectors:
        # Of vectors, more groups leave too few values in each.
        options["num_groups"] = root_divisor(norm.shape[0])
    if norm.kind == "batch":
        for name in ("momentum", "track_running_stats"):
            if hasattr(norm.module, name) and name in options_of(layer):
                options[name] = getattr(norm.module, name)
    return options


def _batch_norm(norm: Norm) -> tuple[type[nn.Module] | None, Options]:
    """The BatchNorm that a norm was, or was made from, if that is known; what was synchronised stays so."""
    group = getattr(norm.module, "process_group", None)
    if isinstance(norm.module, PopulationWhitening) and group is not None:
        return nn.SyncBatchNorm, {"process_group": group}
    names = [getattr(norm.module, "replaces", ""), *(base.__name__ for base in type(norm.module).__mro__)]
    # InstanceNorm tells the dimensions too.
    names = [name.replace("InstanceNorm", "BatchNorm") for name in names]
    return next((_DIMENSIONS[name] for name in names if name in _DIMENSIONS), None), {}


def _lost(new: nn.Module, norm: Norm) -> str:
    """What of the norm cannot be taken over, with the remedy."""
    frozen = norm.kind == "batch" and not isinstance(norm.module, (BATCH, PopulationWhitening))
    if frozen and isinstance(new, (BATCH, PopulationWhitening)):
        return "a frozen norm becomes one with batch statistics in training; eval() of the layer keeps it fixed"
    return ""


def take_hooks(new: nn.Module, old: nn.Module) -> None:
    """Give a module the hooks of the one it replaces. The handles that remove them stay good."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))


def same(new: nn.Module, old: nn.Module) -> bool:
    """Whether a layer is already what would take its place."""
    return type(new) is type(old) and new.extra_repr() == old.extra_repr()


@torch.no_grad()
def _take_parameters(new: nn.Module, norm: Norm) -> None:
    """The old parameters themselves, so that an optimizer that has them goes on with them."""
    for name, parameter in new.named_parameters(recurse=False):
        old = _parameter(norm, name)
        if isinstance(old, nn.Parameter) and old.shape == parameter.shape:
            new.register_parameter(name, old)
        elif old is not None and old.numel() == parameter.numel():
            parameter.copy_(old.reshape(parameter.shape))
    take_requires_grad(new, norm)


def take_requires_grad(new: nn.Module, norm: Norm) -> None:
    """Let a layer learn what the norm learned; a frozen norm's layer is frozen, whatever parameters it has."""
    affine = [tensor for tensor in (norm.weight, norm.bias) if tensor is not None]
    frozen = bool(affine) and not any(tensor.requires_grad for tensor in affine)
    for name, parameter in new.named_parameters(recurse=False):
        old = _parameter(norm, name)
        if old is not None:
            parameter.requires_grad_(old.requires_grad)
        else:
            # A norm may have β alone.
            parameter.requires_grad_(not frozen and not (affine and name == "weight"))


def _parameter(norm: Norm, name: str) -> Tensor | None:
    old = getattr(norm, name) if name in ("weight", "bias") else getattr(norm.module, name, None)
    return old if isinstance(old, Tensor) else None


@torch.no_grad()
def _take_population(new: nn.Module, norm: Norm) -> None:
    old = norm.module
    if isinstance(new, PopulationWhitening):
        if new.track_running_stats:
            _set_whitening(new, norm)
    elif isinstance(new, BATCH) and new.track_running_stats:
        _set_batch_norm(new, norm.population)
    seen, tracked = (getattr(module, "num_batches_tracked", None) for module in (old, new))
    if norm.kind == "batch" and seen is not None and tracked is not None:
        tracked.copy_(seen)


def _set_whitening(new: PopulationWhitening, norm: Norm) -> None:
    old, (mean, matrix) = norm.module, new._population()
    assert mean is not None
    assert matrix is not None
    if isinstance(old, PopulationWhitening) and old._same_population(new):
        for target, source in zip((mean, matrix), old._population(), strict=True):
            assert source is not None
            target.copy_(source)
        return
    population = norm.population
    if population is None:
        return
    if population.cov.shape[-1] == 1:
        new.set_diagonal_population(population.mean, population.cov.flatten())
        return
    cov = _regrouped(population.cov, new.group_size)
    new.set_population(population.mean, cov - new.eps * torch.eye(new.group_size, dtype=cov.dtype, device=cov.device))


def _set_batch_norm(new: Any, population: Population | None) -> None:
    if population is not None:
        new.running_mean.copy_(population.mean)
        variance = population.cov.diagonal(dim1=-2, dim2=-1).flatten()
        new.running_var.copy_((variance - new.eps).clamp_min(0))


def _regrouped(cov: Tensor, size: int) -> Tensor:
    """Covariances ``(G, K, K)`` of some groups of channels as those of others, which know nothing between groups."""
    whole = torch.block_diag(*cov)
    return torch.stack([whole[start : start + size, start : start + size] for start in range(0, len(whole), size)])


def _take_process_group(new: PopulationWhitening, old: nn.Module) -> None:
    if isinstance(old, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        new.process_group = old.process_group or dist.group.WORLD
    elif isinstance(old, PopulationWhitening):
        new.process_group = old.process_group


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
