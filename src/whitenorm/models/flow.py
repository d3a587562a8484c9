"""What follows what in a model: where the input of a layer comes from, and of how many dimensions it is."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

from torch import fx, nn

from whitenorm.layers.base import Whitening
from whitenorm.layers.sample import LayerWhitening


class Source(NamedTuple):
    """Of a layer's input: the module that made it for this layer alone, and its spatial dimensions, where known."""

    producer: str | None = None
    dimensions: int | None = None


def sources(model: nn.Module, names: list[str]) -> dict[str, Source]:
    """Where the inputs of these layers come from."""
    try:
        graph = _Tracer().trace(model)
    # A trace runs the user's code with stand-ins for tensors, and fails in as many ways as there is code.
    except Exception as error:
        warnings.warn(
            f"{type(model).__name__} cannot be traced ({type(error).__name__}: {error}); only layers that stand next "
            "to each other in an nn.Sequential are merged",
            stacklevel=3,
        )
        return {name: Source(_before_in_sequential(model, name)) for name in names}
    return {name: _in_graph(graph, model, name) for name in names}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Whitening, LayerWhitening)) or super().is_leaf_module(m, module_qualified_name)


def _in_graph(graph: fx.Graph, model: nn.Module, name: str) -> Source:
    called = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(id(model.get_submodule(str(node.target))) for node in called)
    layer = model.get_submodule(name)
    nodes = [node for node in called if model.get_submodule(str(node.target)) is layer]
    if len(nodes) != 1 or not nodes[0].all_input_nodes:
        return Source()
    before = nodes[0].all_input_nodes[0]
    dimensions = _dimensions(before, model)
    if before.op != "call_module" or len(before.users) != 1:
        return Source(None, dimensions)
    target = str(before.target)
    read_directly = any(node.op == "get_attr" and str(node.target).startswith(f"{target}.") for node in graph.nodes)
    if times[id(model.get_submodule(target))] != 1 or read_directly:
        return Source(None, dimensions)
    return Source(target, dimensions)


def _dimensions(node: fx.Node, model: nn.Module) -> int | None:
    """Of the nearest module before that tells by its name: ``Conv2d`` has two, ``Linear`` and ``Flatten`` none."""
    seen: set[Any] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        name = type(model.get_submodule(str(node.target))).__name__ if node.op == "call_module" else str(node.target)
        if "flatten" in name.lower() or name == "Linear":
            return 0
        digits = [int(digit) for digit in "123" if f"{digit}d" in name]
        if digits:
            return digits[0]
        waiting += node.all_input_nodes
    return None


def _before_in_sequential(model: nn.Module, name: str) -> str | None:
    """The module before this one in an ``nn.Sequential``, if neither stands anywhere else."""
    times = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    path, _, last = name.rpartition(".")
    parent = model.get_submodule(path)
    if type(parent).forward is not nn.Sequential.forward:
        return None
    children = list(parent._modules)
    place = children.index(last)
    if place == 0:
        return None
    before = children[place - 1]
    alone = times[id(parent._modules[before])] == 1 and times[id(parent._modules[last])] == 1
    return (f"{path}.{before}" if path else before) if alone else None
