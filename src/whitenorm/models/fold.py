"""Whitening at no inference cost: a batch whitening in eval mode is a fixed linear map, and goes into its neighbour."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from whitenorm._runtime import to_float64
from whitenorm.functional import population_whitening
from whitenorm.layers import BatchWhitening, Whitening
from whitenorm.models.agreement import check_agreement
from whitenorm.models.norms import BATCH, as_norm
from whitenorm.models.producers import CONVOLUTIONS, NO_PRODUCER, TRANSPOSED, Flow, Source, is_plain, is_timm
from whitenorm.models.record import record_
from whitenorm.models.replace import replace_

# timm's norms with an activation, which forward applies after BatchNorm.
_ACTIVATED = ("BatchNormAct2d.forward", "SyncBatchNormAct.forward")
_FORWARDS = (BatchWhitening.forward, BATCH.forward, nn.SyncBatchNorm.forward)
_CALLS = (nn.Module.__call__, Whitening.__call__)
_SHAPES = {2: "vectors (N, C)", 3: "3D input (N, C, L)", 4: "4D input (N, C, H, W)", 5: "5D input (N, C, D, H, W)"}
# Names in a warning; a large model has hundreds.
_SHOWN = 8


def fold_(model: nn.Module, example: Any = None, *, dense: bool = False, batch_norms: bool = False) -> nn.Module:
    """Merge every batch whitening into the convolution or linear layer before it, in place, and return the model.

    The model must be in eval mode, and stay in it. A whitening whose input comes from elsewhere, or from a layer whose
    output or weight something else uses too, becomes a grouped 1×1 convolution of its own. So does one behind a grouped
    convolution whose groups do not hold its own. Layers with statistics of the sample (SW, GW, IW) stay. So do layers
    with hooks, a parametrization or a forward of their own, those that are called with a mask, and those whose
    attributes the model reads. One warning lists what could not be merged into the layer before it, and why.

    What follows what is read from a symbolic trace of ``model(x)``, with all other arguments at their defaults. Where
    ``torch.fx`` cannot trace a module, its children are traced alone; what the module's own code does with their parts
    is read from its source. A trace shows neither values nor methods other than forward: where a model's path depends
    on values or types, or its parts are called in other ways too, give an example, on which the outputs are compared.

    Args:
        model: with :class:`BatchWhitening`, :class:`IterNorm` or :class:`DecorrelatedBatchNorm` layers.
        example: an input, or a tuple of inputs, to compare the outputs on; if they differ, nothing is changed and an
            error raised. They are compared in float64 where the model runs in it, integers and flags exactly.
        dense: merge into grouped convolutions whose groups are too small, too, by joining groups: more weights and
            FLOPs in one layer, in place of a following 1×1 convolution.
        batch_norms: merge the BatchNorms that are left behind convolutions and linear layers, too; elsewhere they stay.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8), nn.ReLU()).eval()
        >>> x = torch.randn(2, 3, 8, 8)
        >>> y = model(x)
        >>> torch.allclose(fold_(model)(x), y, atol=1e-5)
        True
        >>> model[1]
        BatchedIdentity(ndim=4)
    """
    kinds = (BatchWhitening, BATCH) if batch_norms else BatchWhitening
    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                f"expected the model in eval mode (got layer {name!r} in training mode); call model.eval() first: what "
                "is merged are the population's statistics"
            )
    if not layers:
        warnings.warn(_no_layers(model, batch_norms), stacklevel=2)
        return model
    plan = _plan(model, layers, dense)
    notes = [_report(plan)]
    if any(step.folds for step in plan.values()):
        if example is not None:
            notes.append(check_agreement(model, lambda copied: _carry_out(copied, plan, dense), example))
        model = _carry_out(model, plan, dense)
        record_(model)
    if any(notes):
        warnings.warn("\n".join(filter(None, notes)), stacklevel=2)
    return model


class _Step(NamedTuple):
    """The decision for a layer: merge it into a producer, make it a map of its own, or keep it; and why not merged."""

    source: Source
    folds: bool

    @property
    def outcome(self) -> str:
        return "is a 1×1 convolution of its own now" if self.folds else "stays"


def _plan(model: nn.Module, layers: dict[str, Any], dense: bool) -> dict[str, _Step]:
    """Decide for each layer, by name."""
    obstacles = {name: _obstacle(layer) for name, layer in layers.items()}
    # A layer that is the whole model has nothing before it.
    within = {name: layer for name, layer in layers.items() if name and not obstacles[name]}
    flow = Flow(model, set(within.values()))
    plan = {}
    for name, layer in layers.items():
        source = flow.source(name) if name in within else Source(why=obstacles[name] or NO_PRODUCER)
        if source.producer is not None:
            why = _misfit(model.get_submodule(source.producer), layer, dense)
            source = source._replace(producer=None, why=why) if why else source
        maps = isinstance(layer, BatchWhitening) and not source.stays and not obstacles[name]
        plan[name] = _Step(source, source.producer is not None or maps)
    return plan


def _carry_out(model: nn.Module, plan: dict[str, _Step], dense: bool) -> nn.Module:
    """Put the new modules in the places of the old ones, and return the model, or what takes its own place."""
    new: dict[nn.Module, nn.Module] = {}
    for name, (source, folds) in plan.items():
        layer: Any = model.get_submodule(name)
        if source.producer is not None:
            producer = model.get_submodule(source.producer)
            new[producer] = _merge(producer, affine_of(layer), dense)
            new[layer] = _rest(layer, producer)
        elif folds:
            new[layer] = _pointwise(layer, source, model)
    for module in new.values():
        module.eval()
    return replace_(model, new)


def _no_layers(model: nn.Module, batch_norms: bool) -> str:
    """Say why there is nothing to fold."""
    others = any(isinstance(module, Whitening) for module in model.modules())
    why = "its whitening layers use statistics of the sample" if others else "it has no batch whitening layer"
    more = "" if batch_norms else "; batch_norms=True folds BatchNorms, too"
    return f"nothing is folded in {type(model).__name__}: {why}{more}"


def _report(plan: dict[str, _Step]) -> str:
    """Say which layers were not merged, by reason; empty if all is as it was asked for."""
    merged = sum(step.source.producer is not None for step in plan.values())
    nothing = not any(step.folds for step in plan.values())
    reasons: dict[str, list[str]] = {}
    for name, step in plan.items():
        # What stands behind nothing that could hold it is no surprise, unless it is all there is.
        if step.source.producer is None and (nothing or step.source.why != NO_PRODUCER):
            reasons.setdefault(f"{step.outcome}, because {step.source.why}", []).append(name or "the model")
    if not reasons:
        return ""
    lines = "".join(f"\n  {_few(names)}: {reason}" for reason, names in reasons.items())
    summary = "nothing is folded" if nothing else f"{merged} of {len(plan)} layers are merged; the others"
    return f"{summary}:{lines}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _obstacle(layer: Any) -> str:
    """Why a norm is no fixed map that another module may replace; empty if it is one."""
    if parametrize.is_parametrized(layer):
        return "it is parametrized"
    if not _has_known_forward(layer):
        return "it has a forward of its own"
    if _is_watched(layer):
        return "it has hooks"
    if not layer.track_running_stats or layer._buffers["running_mean"] is None:
        return "it keeps no population statistics"
    if any(is_lazy(tensor) for tensor in (*layer.parameters(), *layer.buffers())):
        return "it has no shape yet; run the model once before"
    return ""


def _has_known_forward(layer: nn.Module) -> bool:
    kind = type(layer)
    known = kind.forward in _FORWARDS or _is_activated(layer)
    return known and "forward" not in vars(layer) and kind.__call__ in _CALLS


def _is_activated(layer: nn.Module) -> bool:
    return any(is_timm(type(layer).forward, name) for name in _ACTIVATED)


def _is_watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _misfit(producer: Any, layer: Any, dense: bool) -> str:
    """Why the module before a layer cannot hold the layer's map; empty if it can."""
    if not is_plain(producer) or _is_watched(producer) or "forward" in vars(producer):
        return "the layer before it has hooks, a parametrization or a forward of its own"
    outputs = producer.out_features if isinstance(producer, nn.Linear) else producer.out_channels
    if outputs != layer.num_features:
        return f"the layer before it has {outputs} outputs, but its input has {layer.num_features} channels"
    own = _parameter_dtype(layer)
    if own is not None and own != producer.weight.dtype:
        return f"the layer before it is {producer.weight.dtype}, but its own parameters are {own}"
    size = getattr(layer, "group_size", 1)
    if not dense and isinstance(producer, CONVOLUTIONS) and (outputs // producer.groups) % size:
        return "the groups of the convolution before it do not hold its own; dense=True joins them"
    return ""


def _parameter_dtype(layer: Any) -> torch.dtype | None:
    """The dtype that a norm was cast to; None where it has only statistics, which may be wider."""
    if layer.weight is not None:
        dtype: torch.dtype = layer.weight.dtype
        return dtype
    return None if isinstance(layer, BatchWhitening) else layer.running_mean.dtype


def _rest(layer: nn.Module, producer: Any) -> nn.Module:
    """Make the module that stays in a merged layer's place: a check, and the activation of timm's norms."""
    ndim = 2 if isinstance(producer, nn.Linear) else producer.weight.ndim
    norm = as_norm(layer)
    activation = norm.activation if norm is not None and _is_activated(layer) else []
    check = BatchedIdentity(ndim)
    return nn.Sequential(check, *activation) if activation else check


class Affine(NamedTuple):
    """y = matrix @ x + offset, with ``(G, K, K)`` and ``(G, K)``."""

    matrix: Tensor
    offset: Tensor


@torch.no_grad()
def affine_of(layer: Any) -> Affine:
    """The map that a batch whitening or BatchNorm is in eval mode, ``(G, K, K)`` and ``(G, K)``, in float64."""
    if isinstance(layer, BatchWhitening):
        mean, matrix = (None if tensor is None else to_float64(tensor) for tensor in layer._population())
        assert mean is not None
        assert matrix is not None
        if layer.population == "covariance":
            matrix = population_whitening(matrix, layer.eps, layer.solver)
    else:
        mean, matrix = (
            to_float64(layer.running_mean),
            (to_float64(layer.running_var) + layer.eps).rsqrt()[:, None, None],
        )
    shape = matrix.shape[:2]
    weight, bias = (None if p is None else to_float64(p).reshape(shape) for p in (layer.weight, layer.bias))
    matrix = matrix if weight is None else weight.unsqueeze(-1) * matrix
    centre = (matrix @ mean.reshape(*shape, 1)).squeeze(-1)
    return Affine(matrix, -centre if bias is None else bias - centre)


@torch.no_grad()
def _merge(producer: Any, affine: Affine, dense: bool) -> nn.Module:
    """Copy the producer, with the map behind it in its weights."""
    new = copy.deepcopy(producer)
    weight = _rows_of_outputs(producer)
    if isinstance(new, CONVOLUTIONS):
        outputs, size = len(weight), affine.offset.shape[1]
        joined = math.lcm(outputs // new.groups, size) if dense else outputs // new.groups
        weight = _join_groups(weight, new.groups, outputs // joined)
        new.groups = outputs // joined
    old = producer.bias
    bias = torch.zeros_like(affine.offset) if old is None else old.double().view_as(affine.offset)
    like = producer.weight
    shape = affine.matrix.shape[:2]
    mixed = (affine.matrix @ weight.double().reshape(*shape, -1)).reshape(weight.shape)
    offset = (affine.matrix @ bias.unsqueeze(-1)).squeeze(-1) + affine.offset
    _set_rows_of_outputs(new, mixed.to(like.dtype))
    new.bias = nn.Parameter(offset.flatten().to(like.dtype), requires_grad=like.requires_grad)
    new.weight.requires_grad_(like.requires_grad)
    return new


def _rows_of_outputs(module: Any) -> Tensor:
    """The weight with its output channels first, ``(O, I / groups, ...)``."""
    weight = module.weight.detach()
    if not isinstance(module, TRANSPOSED):
        return weight
    inputs, outputs, *kernel = weight.shape
    groups = module.groups
    return weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2).flatten(0, 1)


def _set_rows_of_outputs(module: Any, rows: Tensor) -> None:
    if isinstance(module, TRANSPOSED):
        rows = rows.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    kept = torch.empty_like(module.weight) if rows.shape == module.weight.shape else torch.empty_like(rows)
    module.weight = nn.Parameter(kept.copy_(rows))


def _join_groups(weight: Tensor, groups: int, fewer: int) -> Tensor:
    """The weight ``(O, I / groups, ...)`` of a grouped convolution as one of fewer groups, with zeros in between."""
    if groups == fewer:
        return weight
    each = groups // fewer
    outputs, inputs, *kernel = weight.shape
    joined = weight.new_zeros(groups, outputs // groups, each, inputs, *kernel)
    for group in range(groups):
        joined[group, :, group % each] = weight[group * (outputs // groups) : (group + 1) * (outputs // groups)]
    return joined.reshape(outputs, each * inputs, *kernel)


@torch.no_grad()
def _pointwise(layer: BatchWhitening, source: Source, model: nn.Module) -> nn.Module:
    """Make a module of its own for the layer's map, in the model's dtype: statistics may be wider.

    Where the model mixes dtypes, the input's may be another than the layer's: the map keeps that of the statistics.
    """
    matrix, offset = affine_of(layer)
    groups, size = offset.shape
    channels = groups * size
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    mixed = len(dtypes) > 1
    dimensions = None if mixed else source.dimensions
    if dimensions == 0:
        module: Any = nn.Linear(channels, channels)
        weight = torch.block_diag(*matrix)
    else:
        kind = ChannelMap if dimensions is None else _POINTWISE[dimensions]
        module = kind(channels, channels, 1, groups=groups)
        weight = matrix.reshape(module.weight.shape)
    statistics = layer._buffers["running_mean"]
    assert statistics is not None
    dtype = statistics.dtype if mixed or not dtypes else dtypes.pop()
    learned = layer.weight is None or layer.weight.requires_grad
    module.weight = nn.Parameter(weight.to(dtype), requires_grad=learned)
    module.bias = nn.Parameter(offset.flatten().to(dtype), requires_grad=learned)
    return module


def _check_shape(input: Tensor, expected: str, ndim: int) -> None:
    # A stand-in for a tensor, in someone's symbolic trace, has no dimensions.
    if isinstance(input, Tensor) and input.ndim != ndim:
        raise ValueError(
            f"expected {expected} (got {input.ndim}D input of shape {list(input.shape)}): a whitening of dimension 1 "
            "was folded here, into one of the channels; add the batch dimension, or leave the layer unfolded"
        )


class BatchedIdentity(nn.Identity):
    """Identity in the place of a merged layer, with a check of its input's dimensions: others were whitened otherwise.

    Args:
        ndim: dimensions of the input, the batch's included.
    """

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.ndim = ndim
        self.expected = _SHAPES[ndim]

    def forward(self, input: Tensor) -> Tensor:
        _check_shape(input, self.expected, self.ndim)
        return input

    def extra_repr(self) -> str:
        return f"ndim={self.ndim}"


class ChannelMap(nn.Conv1d):
    """A 1×1 convolution of inputs of any dimensions, ``(N, C)`` included, and any dtype."""

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(*input.shape[:2], -1).to(self.weight.dtype)
        return super().forward(flat).reshape(input.shape).to(input.dtype)


class Pointwise1d(nn.Conv1d):
    """A 1×1 convolution of ``(N, C, L)``, and no other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_shape(input, "3D input (N, C, L)", 3)
        return self._conv_forward(input, self.weight, self.bias)


class Pointwise2d(nn.Conv2d):
    """A 1×1 convolution of ``(N, C, H, W)``, and no other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_shape(input, "4D input (N, C, H, W)", 4)
        return self._conv_forward(input, self.weight, self.bias)


class Pointwise3d(nn.Conv3d):
    """A 1×1 convolution of ``(N, C, D, H, W)``, and no other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_shape(input, "5D input (N, C, D, H, W)", 5)
        return self._conv_forward(input, self.weight, self.bias)


_POINTWISE: dict[int, type[nn.Module]] = {1: Pointwise1d, 2: Pointwise2d, 3: Pointwise3d}
