"""What follows what in a model: where the input of a layer comes from, and of how many dimensions it is."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch.nn.utils import parametrize

from whitenorm.layers.base import Whitening
from whitenorm.models.norms import BATCH

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
PRODUCERS = (*CONVOLUTIONS, nn.Linear)
# Convolutions of other libraries whose forward only pads before it convolves.
_ONLY_PADS = ("Conv2dSame", "Conv2dAlign")
# What leaves the number of dimensions as it is.
_SAME_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.dropout", "torch.nn.modules.batchnorm")
_SAME_FUNCTIONS = {torch.relu, torch.cat, F.relu, F.silu, F.gelu}
_KINDS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d),
}


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
    calls = _Calls(graph, model)
    return {name: calls.source(name) for name in names}


def _defaults(model: nn.Module) -> dict[str, object]:
    """The arguments that a plain call leaves at their defaults."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a convolution or linear layer that uses its weight as it is.

    A subclass may have a forward of its own that changes it, and a parametrization computes it anew.
    """
    if parametrize.is_parametrized(module):
        return False
    kinds = [kind for kind in PRODUCERS if isinstance(module, kind)]
    same = any(_same_forward(type(module), kind) for kind in kinds)
    return same or (bool(kinds) and type(module).__name__ in _ONLY_PADS)


def _same_forward(subclass: type, kind: type) -> bool:
    # A convolution's forward calls the second.
    methods = [name for name in ("forward", "_conv_forward") if hasattr(kind, name)]
    return all(getattr(subclass, name) is getattr(kind, name) for name in methods)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (Whitening, BATCH)) or is_plain(m)
        return known or super().is_leaf_module(m, module_qualified_name)


class _Calls:
    """The modules that a trace calls."""

    def __init__(self, graph: fx.Graph, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.nodes: dict[nn.Module, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self.nodes.setdefault(self.modules[str(node.target)], []).append(node)
        self.read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def source(self, name: str) -> Source:
        nodes = self.nodes.get(self.modules[name], [])
        if len(nodes) != 1 or not nodes[0].all_input_nodes:
            return Source()
        before = nodes[0].all_input_nodes[0]
        dimensions = self._dimensions(before)
        if before.op != "call_module" or len(before.users) != 1:
            return Source(None, dimensions)
        target = str(before.target)
        if len(self.nodes[self.modules[target]]) != 1 or target in self.read:
            return Source(None, dimensions)
        return Source(target, dimensions)

    def _dimensions(self, node: fx.Node) -> int | None:
        """Those that a convolution or pooling before tells of, seen through what surely leaves them as they are."""
        while True:
            if node.op == "call_module":
                module = self.modules[str(node.target)]
                known = _told_by(module)
                passes = type(module).__module__ in _SAME_MODULES or isinstance(module, (nn.Identity, Whitening))
            else:
                known = 0 if node.target is torch.flatten and node.args[1:] == (1,) else None
                passes = node.op == "call_function" and node.target in _SAME_FUNCTIONS
            if known is not None or not passes or not node.all_input_nodes:
                return known
            node = node.all_input_nodes[0]


def _told_by(module: nn.Module) -> int | None:
    """The spatial dimensions of a module's output, if its kind says so."""
    if isinstance(module, nn.Flatten):
        return 0 if (module.start_dim, module.end_dim) == (1, -1) else None
    return next((dimensions for dimensions, kinds in _KINDS.items() if isinstance(module, kinds)), None)
