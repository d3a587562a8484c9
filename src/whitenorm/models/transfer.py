"""Make the layer that replaces a norm, and transfer the norm's state to it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.layers.base import PopulationWhitening, Whitening
from whitenorm.models.modules import Activated, put_before
from whitenorm.models.norms import BATCH_NORM, Norm, Population
from whitenorm.models.targets import (
    LayerLike,
    NewLayer,
    Options,
    list_options,
    make_channel_layer,
    make_function_layer,
    make_token_layer,
)
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


def make_replacement(layer: LayerLike, norm: Norm, options: Options, name: str, like: Tensor) -> NewLayer:
    """Make the layer that replaces a norm, with the norm's parameters, population, mode, momentum and activation.

    Args:
        layer: a layer's name, or a function from width to layer.
        norm: the norm to replace.
        options: arguments of the layer.
        name: the layer's name in the model.
        like: a tensor of the norm's device and dtype; see :func:`find_nearest_tensors`.
    """
    new, note = _make_layer(layer, norm, options)
    new.to(device=like.device, dtype=like.dtype)
    if not any(tensor.is_floating_point() for tensor in _list_tensors(new)):
        new._like = torch.empty(0, dtype=like.dtype, device=like.device)
    _transfer_parameters(new, norm)
    _transfer_population(new, norm)
    return NewLayer(place_layer(new, norm, name), note or _describe_loss(new, norm))


def place_layer(new: nn.Module, norm: Norm, name: str) -> nn.Module:
    """Give a layer the norm's origin and training mode, and put it before the norm's activation, if there is one."""
    transfer_origin(new, norm, name)
    new.train(norm.module.training)
    return put_before(Activated, new, *norm.activation) if norm.activation else new


def find_nearest_tensors(model: nn.Module) -> dict[nn.Module, Tensor]:
    """Map each module to a floating-point tensor of its device and dtype.

    The tensor is the module's own, otherwise that of the nearest module registered before it, otherwise the first one
    of the model. Layers that a conversion made without any tensors keep an empty one for this purpose.
    """
    first = next(filter(Tensor.is_floating_point, (*model.parameters(), *model.buffers())), None)
    nearest: dict[nn.Module, Tensor] = {}
    for module in model.modules():
        first = next(filter(Tensor.is_floating_point, _list_tensors(module)), first)
        nearest[module] = getattr(module, "_like", torch.empty(0)) if first is None else first
    return nearest


def make_identity_norm(linear: nn.Linear) -> Norm:
    """Make a BatchNorm for a linear layer's input that is exactly the identity in eval mode, as its ε is zero."""
    weight = linear.weight
    norm = nn.BatchNorm1d(linear.in_features, eps=0.0, device=weight.device, dtype=weight.dtype)
    return Norm(norm.train(linear.training), "batch", (linear.in_features,))


def transfer_origin(new: nn.Module, norm: Norm, name: str) -> None:
    """Store in a layer its name in the model, and the class, ε and process group of the norm that it replaces."""
    old = norm.module
    if isinstance(new, Whitening):
        new.name_in_model = name
        new.replaces = getattr(old, "replaces", "") or type(old).__name__
        eps = norm.eps if norm.kind == "batch" and norm.eps is not None else new.batch_norm_eps
        new.batch_norm_eps = getattr(old, "batch_norm_eps", eps)
    if isinstance(new, PopulationWhitening):
        _transfer_process_group(new, old)


def _make_layer(layer: LayerLike, norm: Norm, options: Options) -> NewLayer:
    if not isinstance(layer, str):
        return NewLayer(make_function_layer(layer, math.prod(norm.shape)))
    if norm.kind == "unknown":
        kind = type(norm.module)
        raise ValueError(
            f"expected a norm whose input's layout is known (got {kind.__module__}.{kind.__qualname__}, which has a "
            "forward of its own, or cannot be tried on the meta device); leave it out with a filter, "
            "where=lambda module, name: ..., or make the layer yourself"
        )
    if norm.is_tokenwise:
        return make_token_layer(layer, norm, options, _inherit_affine(norm))
    inherited = _inherit_options(layer, norm)
    if layer != "bn":
        return make_channel_layer(layer, norm.shape[0], options, inherited)
    batch_norm, more = _find_batch_norm(norm)
    return make_channel_layer(layer, norm.shape[0], options, {**inherited, **more}, batch_norm)


def _inherit_affine(norm: Norm) -> Options:
    affine = norm.weight is not None or norm.bias is not None
    return {"affine": True, "bias": False} if affine and norm.bias is None else {"affine": affine}


def _inherit_options(layer: str, norm: Norm) -> Options:
    """Return the options that follow from the norm; those of the call come first."""
    options = _inherit_affine(norm)
    if layer in ("gw", "gn") and norm.kind == "group":
        options["num_groups"] = norm.module.num_groups
    elif layer in ("gw", "gn") and norm.has_vector_input:
        # With more groups, a vector has too few values per group.
        options["num_groups"] = root_divisor(norm.shape[0])
    if norm.kind == "batch":
        for name in ("momentum", "track_running_stats"):
            if hasattr(norm.module, name) and name in list_options(layer):
                options[name] = getattr(norm.module, name)
    return options


def _find_batch_norm(norm: Norm) -> tuple[type[nn.Module] | None, Options]:
    """Return the BatchNorm class that a norm has or replaced, if known; a synchronized layer stays synchronized."""
    group = getattr(norm.module, "process_group", None)
    if isinstance(norm.module, PopulationWhitening) and group is not None:
        return nn.SyncBatchNorm, {"process_group": group}
    names = [getattr(norm.module, "replaces", ""), *(base.__name__ for base in type(norm.module).__mro__)]
    # InstanceNorm has the number of dimensions in its name, too.
    names = [name.replace("InstanceNorm", "BatchNorm") for name in names]
    return next((_DIMENSIONS[name] for name in names if name in _DIMENSIONS), None), {}


def _describe_loss(new: nn.Module, norm: Norm) -> str:
    """Describe what cannot be transferred, with the remedy; empty if there is nothing."""
    is_frozen = norm.kind == "batch" and not isinstance(norm.module, (BATCH_NORM, PopulationWhitening))
    if is_frozen and isinstance(new, (BATCH_NORM, PopulationWhitening)):
        return "a frozen norm becomes one with batch statistics in training; eval() of the layer keeps it fixed"
    return ""


def transfer_hooks(new: nn.Module, old: nn.Module) -> None:
    """Give a module the hooks of the one it replaces; the handles that remove them stay valid."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))


def is_same_layer(new: nn.Module, old: nn.Module) -> bool:
    """Return whether a layer already is what would replace it."""
    return type(new) is type(old) and new.extra_repr() == old.extra_repr()


@torch.no_grad()
def _transfer_parameters(new: nn.Module, norm: Norm) -> None:
    """Reuse the norm's parameter objects where possible, so that an optimizer that holds them trains the new layer."""
    for name, parameter in new.named_parameters(recurse=False):
        old = _read_parameter(norm, name)
        if isinstance(old, nn.Parameter) and old.shape == parameter.shape:
            new.register_parameter(name, old)
        elif old is not None and old.numel() == parameter.numel():
            parameter.copy_(old.reshape(parameter.shape))
    transfer_requires_grad(new, norm)


def transfer_requires_grad(new: nn.Module, norm: Norm) -> None:
    """Copy ``requires_grad`` from the norm; if the norm is frozen, parameters that it does not have are frozen too."""
    affine = [tensor for tensor in (norm.weight, norm.bias) if tensor is not None]
    is_frozen = bool(affine) and not any(tensor.requires_grad for tensor in affine)
    for name, parameter in new.named_parameters(recurse=False):
        old = _read_parameter(norm, name)
        if old is not None:
            parameter.requires_grad_(old.requires_grad)
        else:
            # The norm may have β without γ.
            parameter.requires_grad_(not is_frozen and not (affine and name == "weight"))


def _read_parameter(norm: Norm, name: str) -> Tensor | None:
    old = getattr(norm, name) if name in ("weight", "bias") else getattr(norm.module, name, None)
    return old if isinstance(old, Tensor) else None


@torch.no_grad()
def _transfer_population(new: nn.Module, norm: Norm) -> None:
    old = norm.module
    if isinstance(new, PopulationWhitening):
        if new.track_running_stats:
            _set_whitening(new, norm)
    elif isinstance(new, BATCH_NORM) and new.track_running_stats:
        _set_batch_norm(new, norm.population)
    old_count = old._counter() if isinstance(old, PopulationWhitening) else getattr(old, "num_batches_tracked", None)
    new_count = getattr(new, "num_batches_tracked", None)
    if norm.kind == "batch" and old_count is not None and new_count is not None:
        new_count.copy_(old_count)


def _set_whitening(new: PopulationWhitening, norm: Norm) -> None:
    old = norm.module
    if isinstance(old, PopulationWhitening) and old._has_same_population(new):
        mean, matrix = old._population()
        assert mean is not None
        assert matrix is not None
        new._write_population(mean, matrix)
        return
    population = norm.population
    if population is None:
        return
    if population.cov.shape[-1] == 1:
        new.set_diagonal_population(population.mean, population.cov.flatten())
        return
    cov = _regroup(population.cov, new.group_size)
    new.set_population(population.mean, cov - new.eps * torch.eye(new.group_size, dtype=cov.dtype, device=cov.device))


def _set_batch_norm(new: Any, population: Population | None) -> None:
    if population is not None:
        new.running_mean.copy_(population.mean)
        variance = population.cov.diagonal(dim1=-2, dim2=-1).flatten()
        new.running_var.copy_((variance - new.eps).clamp_min(0))


def _regroup(cov: Tensor, size: int) -> Tensor:
    """Return covariances ``(G, K, K)`` for groups of another size; covariance between the old groups is zero."""
    full = torch.block_diag(*cov)
    return torch.stack([full[start : start + size, start : start + size] for start in range(0, len(full), size)])


def _transfer_process_group(new: PopulationWhitening, old: nn.Module) -> None:
    if isinstance(old, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        new.process_group = old.process_group or dist.group.WORLD
    elif isinstance(old, PopulationWhitening):
        new.process_group = old.process_group


def _list_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
