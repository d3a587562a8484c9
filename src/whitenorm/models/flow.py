"""What follows what in a model: where the input of a layer comes from, and of how many dimensions it is."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from whitenorm.layers.base import Whitening
from whitenorm.layers.sample import LayerWhitening

# Convolutions of other libraries whose forward only pads before it convolves.
ONLY_PADS = ("Conv2dSame", "Conv2dAlign")
# What leaves the number of dimensions as it is.
_SAME_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.dropout", "torch.nn.modules.batchnorm")
_SAME_FUNCTIONS = {torch.relu, torch.cat, F.relu, F.silu, F.gelu}
_KNOWN = {f"{kind}{d}d": d for kind in ("Conv", "ConvTranspose", "MaxPool", "AvgPool") for d in (1, 2, 3)}


class Source(NamedTuple):
    """Of a layer's input: the module that made it for this layer alone, and its spatial dimensions, where known.

    Vectors ``(N, C)`` have none, which is 0.
    """

    producer: str | None = None
    dimensions: int | None = None


def sources(model: nn.Module, names: list[str]) -> dict[str, Source]:
    """Where the inputs of these layers come from."""
    try:
        # A trace runs the model's code with stand-ins for tensors, which must not stay in the model.
        graph = _Tracer().trace(copy.deepcopy(model), _defaults(model))
    # The user's code then fails in as many ways as there is code.
    except Exception as error:
        warnings.warn(
            f"{type(model).__name__} cannot be traced ({type(error).__name__}: {error}), so that nothing is known of "
            "what follows what; each whitening becomes a 1×1 convolution of its own",
            stacklevel=3,
        )
        return {name: Source() for name in names}
    return {name: _in_graph(graph, model, name) for name in names}


def _defaults(model: nn.Module) -> dict[str, object]:
    """The arguments that a plain call leaves at their defaults."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (Whitening, LayerWhitening)) or type(m).__name__ in ONLY_PADS
        return known or super().is_leaf_module(m, module_qualified_name)


def _in_graph(graph: fx.Graph, model: nn.Module, name: str) -> Source:
    called = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(id(_module(node, model)) for node in called)
    layer = model.get_submodule(name)
    nodes = [node for node in called if _module(node, model) is layer]
    if len(nodes) != 1 or not nodes[0].all_input_nodes:
        return Source()
    before = nodes[0].all_input_nodes[0]
    dimensions = _dimensions(before, model)
    if before.op != "call_module" or len(before.users) != 1:
        return Source(None, dimensions)
    target = str(before.target)
    read_directly = any(node.op == "get_attr" and str(node.target).startswith(f"{target}.") for node in graph.nodes)
    if times[id(_module(before, model))] != 1 or read_directly:
        return Source(None, dimensions)
    return Source(target, dimensions)


def _module(node: fx.Node, model: nn.Module) -> nn.Module:
    return model.get_submodule(str(node.target))


def _dimensions(node: fx.Node, model: nn.Module) -> int | None:
    """Those that a convolution or pooling before tells of, seen through what surely leaves them as they are."""
    while True:
        if node.op == "call_module":
            module = _module(node, model)
            if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
                return 0
            if type(module).__name__ in _KNOWN and type(module).__module__.startswith("torch.nn"):
                return _KNOWN[type(module).__name__]
            passes = type(module).__module__ in _SAME_MODULES or isinstance(module, (nn.Identity, Whitening))
        elif node.target is torch.flatten and node.args[1:] == (1,):
            return 0
        else:
            passes = node.op == "call_function" and node.target in _SAME_FUNCTIONS
        if not passes or not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
