"""The layers by name, with group sizes that fit each width, and what they take over from the norm they replace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.core.check import divisors
from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)
from whitenorm.layers.base import PopulationWhitening
from whitenorm.models.norms import Norm

LayerLike = str | Callable[[int], nn.Module]

# From a width to a layer. Group sizes are the papers': 64 for IterNorm, BW_Σ and GW, 16 for DBN, SW and IW.
_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "iternorm": lambda width, group_size=64, **options: IterNorm(width, fit(width, group_size), **options),
    "dbn": lambda width, group_size=16, **options: DecorrelatedBatchNorm(width, fit(width, group_size), **options),
    "bw-sigma": lambda width, group_size=64, solver="zca", **options: BatchWhitening(
        width, fit(width, group_size), solver, population="covariance", **options
    ),
    "sw": lambda width, group_size=16, **options: SwitchableWhitening(width, fit(width, group_size), **options),
    "sw5": lambda width, group_size=16, **options: SwitchableWhitening(
        width, fit(width, group_size), ("bw", "iw", "bn", "in", "ln"), **options
    ),
    "gw": lambda width, num_groups=64, **options: GroupWhitening(fit(width, num_groups), width, **options),
    "iw": lambda width, group_size=16, **options: InstanceWhitening(width, fit(width, group_size), **options),
}
NAMES = tuple(_LAYERS)
_POPULATION = ("iternorm", "dbn", "bw-sigma", "sw", "sw5")


def fit(width: int, wish: int) -> int:
    """The largest divisor of the width that is not above the wish.

    Example::

        >>> fit(96, 64), fit(24, 64), fit(100, 16)
        (48, 24, 10)
    """
    return max(divisor for divisor in divisors(width) if divisor <= wish)


def named(name: str, width: int, **options: Any) -> nn.Module:
    """A layer by its name in :func:`whitenorm.convert_`, with options of its own, and a group size that fits.

    Example::

        >>> named("iternorm", 96, group_size=64, steps=3).group_size
        48
    """
    check_layer(name)
    return _LAYERS[name](width, **options)


def check_layer(layer: LayerLike) -> None:
    if isinstance(layer, nn.Module):
        raise ValueError(
            f"expected layer to be a name or a function from width to layer (got a layer, {type(layer).__name__}); "
            "every norm needs one of its own: lambda width: ..."
        )
    if isinstance(layer, str) and layer not in _LAYERS:
        known = ", ".join(f'"{name}"' for name in _LAYERS)
        raise ValueError(f"expected layer to be one of {known}, or a function from width to layer (got {layer!r})")
    if not isinstance(layer, str) and not callable(layer):
        raise ValueError(f"expected layer to be a name or a function from width to layer (got {layer!r})")


def make(layer: LayerLike, norm: Norm, keep_eps: bool) -> nn.Module:
    """The new layer in a norm's place: its parameters, population, device, dtype, mode and activation."""
    tensor = next((value for value in _tensors(norm.module) if value.is_floating_point()), torch.empty(0))
    options: dict[str, Any] = {"device": tensor.device, "dtype": tensor.dtype}
    if isinstance(layer, str):
        new = _named(layer, norm, {**options, "eps": norm.module.eps} if keep_eps else options)
    else:
        new = _made(layer, math.prod(norm.shape)).to(**options)
    _take_over(new, norm)
    new.train(norm.module.training)
    return nn.Sequential(new, *norm.activation) if norm.activation else new


def _made(function: Callable[[int], nn.Module], width: int) -> nn.Module:
    new = function(width)
    if not isinstance(new, nn.Module):
        raise ValueError(f"expected the function to return a layer for width {width} (got {new!r})")
    return new


def features(layer: LayerLike, width: int, like: Tensor) -> nn.Module:
    """A new layer for vectors ``(N, C)``, without γ and β, as the linear layer behind it has its own.

    Of a batch method, the population is such that nothing changes in eval mode.
    """
    if not isinstance(layer, str):
        return _made(layer, width).to(device=like.device, dtype=like.dtype)
    if layer in ("sw", "sw5", "iw"):
        raise ValueError(
            f'expected a layer for vectors in where="…+df" (got {layer!r}, which whitens over the positions of a '
            'sample); use "iternorm", "dbn", "bw-sigma" or "gw"'
        )
    options: dict[str, Any] = {"affine": False, "device": like.device, "dtype": like.dtype}
    if layer == "gw":
        return GroupWhitening(fit(width, math.isqrt(width)), width, **options)
    new = _LAYERS[layer](width, **options)
    if isinstance(new, PopulationWhitening):
        new.set_diagonal_population(like.new_zeros(width), like.new_ones(width))
    return new


def _named(layer: str, norm: Norm, options: dict[str, Any]) -> nn.Module:
    affine = norm.weight is not None
    width = math.prod(norm.shape)
    if norm.kind == "unknown":
        kind = type(norm.module)
        raise ValueError(
            f"expected a LayerNorm whose input's layout is known (got {kind.__module__}.{kind.__qualname__}, which has "
            "a forward of its own); leave it out with a filter, where=lambda module, name: ..., or make the layer "
            "yourself"
        )
    if layer == "gw" and isinstance(norm.module, nn.BatchNorm1d):
        # Of vectors, more groups leave too few values in each.
        return GroupWhitening(fit(width, math.isqrt(width)), width, affine=affine, **options)
    if norm.kind not in ("layer", "layer2d"):
        if layer in _POPULATION and getattr(norm.module, "track_running_stats", True) is False:
            options = {**options, "track_running_stats": False}
        return _LAYERS[layer](width, affine=affine, **options)
    groups = fit(width, math.isqrt(width))
    solver = "zca" if layer in ("dbn", "bw-sigma") else "newton"
    bias = norm.bias is not None
    kind = LayerWhitening if norm.kind == "layer" else LayerWhitening2d
    return kind(norm.shape, groups, solver, elementwise_affine=affine, bias=bias, **options)


class LayerWhitening2d(LayerWhitening):
    """:class:`LayerWhitening` of the channels of an image ``(N, C, H, W)``, at each position."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


@torch.no_grad()
def _take_over(new: nn.Module, norm: Norm) -> None:
    for name, old in (("weight", norm.weight), ("bias", norm.bias)):
        parameter = getattr(new, name, None)
        if isinstance(parameter, nn.Parameter) and old is not None and parameter.numel() == old.numel():
            parameter.copy_(old.reshape(parameter.shape))
            parameter.requires_grad_(old.requires_grad)
    if isinstance(new, PopulationWhitening) and norm.population is not None:
        new.set_diagonal_population(*norm.population)
        seen = getattr(norm.module, "num_batches_tracked", None)
        if seen is not None and new.num_batches_tracked is not None:
            new.num_batches_tracked.copy_(seen)
    if isinstance(new, PopulationWhitening) and isinstance(norm.module, nn.SyncBatchNorm) and dist.is_initialized():
        new.process_group = norm.module.process_group or dist.group.WORLD


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
