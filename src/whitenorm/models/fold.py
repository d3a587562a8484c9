"""Fold whitening layers into their neighbours for inference, where they are fixed affine maps."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from whitenorm.layers import BatchWhitening, ConceptWhitening, DomainWhitening, Whitening
from whitenorm.models.affine import CONVOLUTIONS, make_pointwise, merge_affine, read_affine
from whitenorm.models.example_check import check_same_output
from whitenorm.models.modules import BatchedIdentity
from whitenorm.models.norms import BATCH_NORM, as_norm
from whitenorm.models.notes import format_notes
from whitenorm.models.producers import NO_PRODUCER, CallGraph, Producer, is_plain, is_timm
from whitenorm.models.record import store_record_
from whitenorm.models.replace import replace_

# timm's norms with an activation, which their forward applies after BatchNorm.
_ACTIVATED = ("BatchNormAct2d.forward", "SyncBatchNormAct.forward")
_FORWARDS = (
    BatchWhitening.forward,
    ConceptWhitening.forward,
    DomainWhitening.forward,
    BATCH_NORM.forward,
    nn.SyncBatchNorm.forward,
)
_CALLS = (nn.Module.__call__, Whitening.__call__)


def fold_(model: nn.Module, example: Any = None, *, dense: bool = False, batch_norms: bool = False) -> nn.Module:
    """Merge every batch whitening into the convolution or linear layer before it, in place, and return the model.

    The model must be in eval mode and stay in it. A whitening layer becomes a separate grouped 1×1 convolution if
    its input does not come from such a layer, if that layer's output or weight is also used elsewhere, or if that layer
    is a grouped convolution with too small groups. These layers stay: layers with statistics of the sample (SW, GW,
    IW), layers with hooks, a parametrization or a forward of their own, layers that are called with a mask, and layers
    whose attributes the model reads. One warning lists the layers that could not be merged, and why.

    The order of layers is read from a symbolic trace of ``model(x)``, with all other arguments at their defaults. If
    ``torch.fx`` cannot trace a module, its children are traced one by one, and the source of its forward is read to
    find how it uses them. A trace shows neither values nor methods other than forward. If the model's path depends on
    values or types, or parts of it are called in other ways too, give an example, on which the outputs are compared.

    Args:
        model: with :class:`BatchWhitening`, :class:`IterNorm` or :class:`DecorrelatedBatchNorm` layers.
        example: an input, or a tuple of inputs, to compare the outputs on, in float64 if the model runs in it, and
            exactly for integers and booleans. If they differ, an error is raised and the model is not changed.
        dense: merge into grouped convolutions with too small groups as well, by joining groups: one layer with more
            weights and FLOPs instead of a following 1×1 convolution.
        batch_norms: also merge BatchNorms after convolutions and linear layers; other BatchNorms stay.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8), nn.ReLU()).eval()
        >>> x = torch.randn(2, 3, 8, 8)
        >>> y = model(x)
        >>> torch.allclose(fold_(model)(x), y, atol=1e-5)
        True
        >>> model[1]
        BatchedIdentity(ndim=4)
    """
    kinds = (BatchWhitening, BATCH_NORM) if batch_norms else BatchWhitening
    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    for name, layer in layers.items():
        if layer.training:
            raise ValueError(
                f"expected the model in eval mode (got layer {name!r} in training mode); call model.eval() first, as "
                "folding uses the population statistics"
            )
    if not layers:
        reason = "it has no batch whitening layer"
        if any(isinstance(module, Whitening) for module in model.modules()):
            reason = "its whitening layers use statistics of the sample"
        hint = "" if batch_norms else "; batch_norms=True folds BatchNorms, too"
        warnings.warn(f"nothing is folded in {type(model).__name__}: {reason}{hint}", stacklevel=2)
        return model
    decisions = _decide(model, layers, dense)
    notes = [_report(decisions)]
    if any(decision.folds for decision in decisions.values()):
        if example is not None:
            notes.append(check_same_output(model, lambda copied: _apply(copied, decisions, dense), example))
        model = _apply(model, decisions, dense)
        store_record_(model)
    if any(notes):
        warnings.warn("\n".join(filter(None, notes)), stacklevel=2)
    return model


class _Decision(NamedTuple):
    """Fold a layer or not: into its producer if that has a name, otherwise into a 1×1 convolution of its own."""

    producer: Producer
    folds: bool


def _decide(model: nn.Module, layers: dict[str, Any], dense: bool) -> dict[str, _Decision]:
    """Decide for each layer, by name."""
    obstacles = {name: _find_obstacle(layer) for name, layer in layers.items()}
    # Nothing comes before a layer that is the whole model.
    candidates = {name: layer for name, layer in layers.items() if name and not obstacles[name]}
    graph = CallGraph(model, set(candidates.values()))
    decisions = {}
    for name, layer in layers.items():
        producer = graph.find_producer(name) if name in candidates else Producer(reason=obstacles[name] or NO_PRODUCER)
        if producer.name is not None:
            reason = _find_misfit(model.get_submodule(producer.name), layer, dense)
            producer = producer._replace(name=None, reason=reason) if reason else producer
        becomes_map = isinstance(layer, BatchWhitening) and not producer.must_stay and not obstacles[name]
        decisions[name] = _Decision(producer, producer.name is not None or becomes_map)
    return decisions


def _apply(model: nn.Module, decisions: dict[str, _Decision], dense: bool) -> nn.Module:
    """Replace the modules as decided, and return the model, or its own replacement."""
    replacements: dict[nn.Module, nn.Module] = {}
    for name, (producer, folds) in decisions.items():
        layer: Any = model.get_submodule(name)
        if producer.name is not None:
            before = model.get_submodule(producer.name)
            replacements[before] = merge_affine(before, read_affine(layer), dense)
            replacements[layer] = _make_placeholder(layer, before)
        elif folds:
            replacements[layer] = make_pointwise(layer, producer.dimensions, model)
    for module in replacements.values():
        module.eval()
    return replace_(model, replacements)


def _make_placeholder(layer: nn.Module, producer: Any) -> nn.Module:
    """Make the module that replaces a merged layer: an identity that checks its input, and timm's activation."""
    norm = as_norm(layer)
    activation = norm.activation if norm is not None and _is_activated(layer) else []
    identity = BatchedIdentity(2 if isinstance(producer, nn.Linear) else producer.weight.ndim)
    return nn.Sequential(identity, *activation) if activation else identity


def _report(decisions: dict[str, _Decision]) -> str:
    """Describe which layers were not merged, by reason; empty if all is as requested."""
    num_merged = sum(decision.producer.name is not None for decision in decisions.values())
    folds_nothing = not any(decision.folds for decision in decisions.values())
    notes = []
    for name, (producer, folds) in decisions.items():
        # A layer without a producer is as expected, unless nothing is folded at all.
        if producer.name is None and (folds_nothing or producer.reason != NO_PRODUCER):
            outcome = "is a 1×1 convolution of its own now" if folds else "stays"
            notes.append((name, f"{outcome}, because {producer.reason}"))
    if not notes:
        return ""
    summary = f"{num_merged} of {len(decisions)} layers are merged; the others"
    return f"{'nothing is folded' if folds_nothing else summary}:{format_notes(notes)}"


def _find_obstacle(layer: Any) -> str:
    """Return why a norm is not a fixed map that can be replaced; empty if it is one."""
    if parametrize.is_parametrized(layer):
        return "it is parametrized"
    if not _has_known_forward(layer):
        return "it has a forward of its own"
    if _has_hooks(layer):
        return "it has hooks"
    if not layer.track_running_stats or layer._buffers["running_mean"] is None:
        return "it keeps no population statistics"
    if isinstance(layer, DomainWhitening) and not isinstance(layer.domain, int):
        return "no domain is chosen; fold inside `with whitenorm.use_domain(model, domain):`"
    if any(is_lazy(tensor) for tensor in (*layer.parameters(), *layer.buffers())):
        return "it has no shape yet; run the model once before"
    return ""


def _has_known_forward(layer: nn.Module) -> bool:
    kind = type(layer)
    is_known = kind.forward in _FORWARDS or _is_activated(layer)
    return is_known and "forward" not in vars(layer) and kind.__call__ in _CALLS


def _is_activated(layer: nn.Module) -> bool:
    return any(is_timm(type(layer).forward, name) for name in _ACTIVATED)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _find_misfit(producer: Any, layer: Any, dense: bool) -> str:
    """Return why the module before a layer cannot hold the layer's map; empty if it can."""
    if not is_plain(producer) or _has_hooks(producer) or "forward" in vars(producer):
        return "the layer before it has hooks, a parametrization or a forward of its own"
    outputs = producer.out_features if isinstance(producer, nn.Linear) else producer.out_channels
    if outputs != layer.num_features:
        return f"the layer before it has {outputs} outputs, but its input has {layer.num_features} channels"
    dtype = _read_dtype(layer)
    if dtype is not None and dtype != producer.weight.dtype:
        return f"the layer before it is {producer.weight.dtype}, but its own parameters are {dtype}"
    size = getattr(layer, "group_size", 1)
    if not dense and isinstance(producer, CONVOLUTIONS) and (outputs // producer.groups) % size:
        return "the groups of the convolution before it do not hold its own; dense=True joins them"
    return ""


def _read_dtype(layer: Any) -> torch.dtype | None:
    """Return the dtype that a norm was cast to; None if it has only statistics, which may be wider."""
    if layer.weight is not None:
        dtype: torch.dtype = layer.weight.dtype
        return dtype
    return None if isinstance(layer, BatchWhitening) else layer.running_mean.dtype
