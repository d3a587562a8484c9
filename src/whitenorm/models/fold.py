"""Whitening at no inference cost: a batch whitening in eval mode is a fixed linear map, and goes into its neighbour."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from whitenorm.functional import population_whitening
from whitenorm.layers import BatchWhitening, LayerWhitening
from whitenorm.layers.base import Whitening
from whitenorm.models.flow import CONVOLUTIONS, TRANSPOSED, Source, is_plain, sources
from whitenorm.models.norms import BATCH, as_norm
from whitenorm.models.record import record_
from whitenorm.models.replace import replace_
from whitenorm.runtime.precision import to_float64

_POINTWISE = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def fold_(model: nn.Module, example: Any = None, *, dense: bool = False, batch_norms: bool = False) -> nn.Module:
    """Merge every batch whitening into the convolution or linear layer before it, in place, and return the model.

    The model must be in eval mode, and stay in it. A whitening whose input comes from elsewhere, or from a layer whose
    output something else uses too, becomes a grouped 1×1 convolution of its own. So does one behind a grouped
    convolution whose groups do not hold its own. Layers with statistics of the sample (SW, GW, IW) stay, and so do
    those that someone watches with a hook.

    What follows what is read from a symbolic trace of ``model(x)``, with all other arguments at their defaults. A
    model that ``torch.fx`` cannot trace gets 1×1 convolutions, with a warning. A trace shows neither values nor
    methods other than forward: where a model's path depends on values or types, or its parts are called in other ways
    too, give an example, on which the outputs are compared. Where nothing is folded, a warning says why.

    Args:
        model: with :class:`BatchWhitening`, :class:`IterNorm` or :class:`DecorrelatedBatchNorm` layers.
        example: an input to compare the outputs on; if they differ, nothing is changed and an error raised.
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
        Identity()
    """
    kinds = (BatchWhitening, BATCH) if batch_norms else BatchWhitening
    layers = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                f"expected the model in eval mode (got layer {name!r} in training mode); call model.eval() first: what "
                "is merged are the population's statistics"
            )
    candidates = len(layers)
    layers = {name: layer for name, layer in layers.items() if layer.track_running_stats and not _watched(layer)}
    root = layers.get("")
    if isinstance(root, BatchWhitening):
        return _pointwise(root, Source(), model).eval()
    expected = None if example is None else _run(model, example)
    found = sources(model, list(layers)) if layers else {}
    new: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        producer = None if found[name].producer is None else model.get_submodule(str(found[name].producer))
        merged = None if producer is None else _merged(producer, affine_of(layer), dense)
        if producer is not None and merged is not None:
            new[producer], new[layer] = merged, _rest(layer)
        elif isinstance(layer, BatchWhitening):
            new[layer] = _pointwise(layer, found[name], model)
    if not new:
        warnings.warn(_nothing(model, candidates, batch_norms), stacklevel=2)
        return model
    for module in new.values():
        module.eval()
    replace_(model, new)
    same = False
    try:
        same = expected is None or _close(_run(model, example), expected)
    finally:
        if not same:
            replace_(model, {module: old for old, module in new.items()})
    if not same:
        raise ValueError(
            "expected the same output after folding (got another one, and undid it): the model takes another path than "
            "its symbolic trace, or uses a layer in other ways than calling it; leave the layers in question unfolded"
        )
    record_(model)
    return model


def _nothing(model: nn.Module, candidates: int, batch_norms: bool) -> str:
    """Why nothing was folded."""
    kind = type(model).__name__
    if candidates:
        return (
            f"nothing is folded: of the {candidates} layers of {kind} that could be, none keeps population statistics, "
            "is free of hooks, and, if it is a BatchNorm, stands alone behind a convolution or linear layer"
        )
    others = any(isinstance(module, (Whitening, LayerWhitening)) for module in model.modules())
    why = "its whitening layers use statistics of the sample" if others else "it has no batch whitening layer"
    more = "" if batch_norms else "; batch_norms=True folds BatchNorms, too"
    return f"nothing is folded in {kind}: {why}{more}"


def _rest(layer: nn.Module) -> nn.Module:
    """What is left where a layer was: the activation that another library has fused with a BatchNorm."""
    norm = as_norm(layer)
    activation = [] if norm is None else norm.activation
    return nn.Sequential(*activation) if activation else nn.Identity()


@torch.no_grad()
def _run(model: nn.Module, example: Any) -> list[Tensor]:
    """All tensors of numbers in the model's output that are not empty."""
    output = model(*example) if isinstance(example, tuple) else model(example)
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return [tensor for tensor in tensors if tensor.numel()]


def _close(actual: list[Tensor], expected: list[Tensor]) -> bool:
    """Up to what rounding on two ways to the same number may make different, in a deep network."""
    return [a.shape for a in actual] == [b.shape for b in expected] and all(
        (a.double() - b.double()).abs().max() <= 100 * torch.finfo(b.dtype).eps ** 0.75 * b.abs().max()
        for a, b in zip(actual, expected, strict=True)
    )


def _watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


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
def _merged(producer: Any, affine: Affine, dense: bool) -> nn.Module | None:
    """The producer with the map behind it in its weights; None where it cannot hold it."""
    if not _may_hold(producer, affine.offset.numel()):
        return None
    new = VectorLinear.like(producer) if isinstance(producer, nn.Linear) else copy.deepcopy(producer)
    weight = _rows_of_outputs(producer)
    if isinstance(new, CONVOLUTIONS):
        outputs, size = len(weight), affine.offset.shape[1]
        joined = math.lcm(outputs // new.groups, size)
        if joined != outputs // new.groups and not dense:
            return None
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


def _may_hold(producer: Any, channels: int) -> bool:
    changed = _watched(producer) or "forward" in vars(producer)
    outputs = getattr(producer, "out_channels", None) or getattr(producer, "out_features", None)
    return is_plain(producer) and not changed and outputs == channels


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
    """A module of its own for the layer's map, in the dtype of the parameters: statistics may be wider."""
    matrix, offset = affine_of(layer)
    groups, size = offset.shape
    channels = groups * size
    if source.dimensions == 0:
        module: Any = nn.Linear(channels, channels)
        weight = torch.block_diag(*matrix)
    else:
        kind = ChannelMap if source.dimensions is None else _POINTWISE[source.dimensions]
        module = kind(channels, channels, 1, groups=groups)
        weight = matrix.reshape(module.weight.shape)
    learned = layer.weight is None or layer.weight.requires_grad
    like = layer._buffers["running_mean"] if layer.weight is None else layer.weight
    assert like is not None
    if layer.weight is None:
        like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), like)
    module.weight = nn.Parameter(weight.to(like.dtype), requires_grad=learned)
    module.bias = nn.Parameter(offset.flatten().to(like.dtype), requires_grad=learned)
    return module


class ChannelMap(nn.Conv1d):
    """A 1×1 convolution of inputs of any dimensions, ``(N, C)`` included, and any dtype."""

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(*input.shape[:2], -1).to(self.weight.dtype)
        return super().forward(flat).reshape(input.shape).to(input.dtype)


class VectorLinear(nn.Linear):
    """A linear layer with a whitening of vectors merged into it, which is right for vectors only."""

    @classmethod
    def like(cls, linear: nn.Linear) -> VectorLinear:
        weight = linear.weight
        return cls(linear.in_features, linear.out_features, device=weight.device, dtype=weight.dtype)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2:
            raise ValueError(
                f"expected vectors (N, {self.in_features}) (got shape {tuple(input.shape)}): a whitening of them was "
                "merged into this linear layer, and of more dimensions it would whiten the second, not the last"
            )
        return super().forward(input)
