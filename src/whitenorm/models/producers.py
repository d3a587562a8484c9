"""Find the module that produces a layer's input, and the number of spatial dimensions of that input."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from whitenorm.layers import Whitening
from whitenorm.models.affine import CONVOLUTIONS
from whitenorm.models.norms import BATCH_NORM
from whitenorm.models.submodule_uses import CALLED, OPENED, find_uses
from whitenorm.models.tracing import Trace, read_default_arguments, trace_module

_PRODUCERS = (*CONVOLUTIONS, nn.Linear)
# timm's convolution whose forward only pads before it convolves.
_ONLY_PADS = "Conv2dSame.forward"
# Modules and functions that keep the number of dimensions.
_SAME_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.dropout", "torch.nn.modules.batchnorm")
_SAME_FUNCTIONS = {torch.relu, torch.cat, F.relu, F.silu, F.gelu}
_KINDS_BY_DIMENSIONS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d),
}
# Characters of an exception's message, which may be very long.
_MAX_MESSAGE = 120

NO_PRODUCER = "its input is not the output of a convolution or linear layer"


class Producer(NamedTuple):
    """The module that produces a layer's input.

    Attributes:
        name: its name, if it is a convolution or linear layer whose output nothing else uses.
        dimensions: spatial dimensions of the layer's input, 0 for vectors ``(N, C)``; None if unknown.
        reason: why there is no such module.
        must_stay: True if the model does more with the layer than to call it with its input.
    """

    name: str | None = None
    dimensions: int | None = None
    reason: str = ""
    must_stay: bool = False


def is_plain(module: nn.Module) -> bool:
    """Return whether a module is a convolution or linear layer that applies its weight unchanged.

    A parametrization, or a forward of its own, may change the weight.
    """
    if parametrize.is_parametrized(module) or any(is_lazy(parameter) for parameter in module.parameters(False)):
        return False
    kinds = [kind for kind in _PRODUCERS if isinstance(module, kind)]
    return any(_has_forward_of(type(module), kind) for kind in kinds) or (
        bool(kinds) and is_timm(type(module).forward, _ONLY_PADS)
    )


def is_timm(function: object, name: str) -> bool:
    """Return whether a function is the one of this qualified name in timm, without importing timm."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith("timm.") and getattr(function, "__qualname__", "") == name


def _has_forward_of(subclass: type, kind: type) -> bool:
    # A convolution's forward calls _conv_forward.
    methods = [name for name in ("__call__", "forward", "_conv_forward") if hasattr(kind, name)]
    return all(getattr(subclass, name) is getattr(kind, name) for name in methods)


def _is_leaf(module: nn.Module) -> bool:
    """Return whether a trace records a module as one call."""
    return isinstance(module, (Whitening, BATCH_NORM)) or is_plain(module)


class _Call(NamedTuple):
    """A call of a module in a trace.

    Attributes:
        node: the call in the graph.
        region: the name of the traced module.
        is_kept: True if the output outlives the forward.
    """

    node: fx.Node
    region: str
    is_kept: bool


class CallGraph:
    """The calls of a model's layers, from symbolic traces.

    The whole model is traced. If that fails, each of its children is traced separately, and so on; the source of the
    modules that cannot be traced is read to find how they use their submodules.
    """

    def __init__(self, model: nn.Module, layers: set[nn.Module]) -> None:
        self.model = model
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.calls: dict[nn.Module, list[_Call]] = defaultdict(list)
        self.reads: dict[nn.Module, set[str]] = defaultdict(set)
        self.failures: dict[nn.Module, str] = {}
        self._trace_regions(layers)
        self.uses = {module: find_uses(module) for module in self.failures}
        self._parts = {module: set(module.modules()) for module in self.modules.values()} if self.failures else {}

    def _trace_regions(self, layers: set[nn.Module]) -> None:
        """Trace the model, then each part with layers that the earlier traces do not show."""
        pending, seen = [""], set()
        while pending:
            name = pending.pop()
            module = self.modules[name]
            if module in seen or _is_leaf(module) or layers.isdisjoint(module.modules()):
                continue
            seen.add(module)
            if _defines_forward(module):
                try:
                    pending += self._add_trace(name, self._trace_region(name))
                    continue
                # The user's code may raise anything.
                except Exception as error:
                    self.failures[module] = _describe_failure(module, error)
            pending += [_join_path(name, child) for child, _ in module.named_children()]

    def _trace_region(self, name: str) -> Trace:
        module = self.modules[name]
        defaults = read_default_arguments(module)
        if name and defaults:
            raise TypeError(f"it is not known with which {', '.join(defaults)} it is called")
        return trace_module(module, _is_leaf, defaults)

    def _add_trace(self, region: str, trace: Trace) -> list[str]:
        """Record the calls of a trace, and return the names of the modules that it shows as a single call."""
        leaves = []
        for node in trace.graph.nodes:
            if node.op == "call_module":
                name = _join_path(region, str(node.target))
                self.calls[self.modules[name]].append(_Call(node, region, node in trace.kept_nodes))
                leaves.append(name)
        for target, names in trace.reads.items():
            self.reads[self.modules[_join_path(region, target)]] |= names
        return leaves

    def find_producer(self, name: str) -> Producer:
        """Find the module that produces a layer's input."""
        layer = self.modules[name]
        calls = self.calls[layer]
        if self.reads[layer]:
            return Producer(reason=f"the model reads its {_join_names(self.reads[layer])}", must_stay=True)
        if any(len(call.node.args) != 1 or call.node.kwargs for call in calls):
            return Producer(reason="it is called with more than its input", must_stay=True)
        parents = self._find_untraced_parents(layer)
        for parent in parents:
            if not self._only_calls(parent, layer):
                reason = f"{self.failures[parent]}, and may use it in other ways than calling it"
                return Producer(reason=reason, must_stay=True)
        if not calls:
            return Producer(reason=self.failures[parents[0]] if parents else "the model's forward does not call it")
        if len(calls) > 1:
            return Producer(reason="it is called more than once")
        return self._find_producer_of_call(calls[0], layer)

    def _find_producer_of_call(self, call: _Call, layer: nn.Module) -> Producer:
        inputs = call.node.all_input_nodes
        if not inputs:
            return Producer(reason=NO_PRODUCER)
        before = inputs[0]
        dimensions = self._find_dimensions(before, call.region)
        target = _join_path(call.region, str(before.target))
        producer = self.modules.get(target) if before.op == "call_module" else None
        if not isinstance(producer, _PRODUCERS):
            return Producer(None, dimensions, NO_PRODUCER)
        reason = self._find_other_use(producer, before, layer)
        return Producer(None if reason else target, dimensions, reason)

    def _find_other_use(self, producer: nn.Module, node: fx.Node, layer: nn.Module) -> str:
        """Return another use of the output or weight of the module before a layer; empty if there is none."""
        calls = self.calls[producer]
        if len(calls) > 1:
            return "the layer before it is called more than once"
        if len(node.users) > 1:
            return "the output of the layer before it is also used elsewhere"
        if calls[0].is_kept:
            return "the model keeps the output of the layer before it"
        # Plain attributes other than groups are not changed by folding.
        changed = {name for name in self.reads[producer] if name == "groups" or name not in vars(producer)}
        if changed:
            return f"the model reads the {_join_names(changed)} of the layer before it"
        for parent in self._find_untraced_parents(producer) + self._find_untraced_parents(layer):
            if not self._calls_together(parent, producer, layer):
                return f"{self.failures[parent]}, and may use the layer before it alone"
        return ""

    def _find_untraced_parents(self, module: nn.Module) -> list[nn.Module]:
        """Return the modules around this one that could not be traced, innermost first."""
        parents = [failure for failure in self.failures if module in self._parts[failure]]
        return sorted(parents, key=lambda parent: len(self._parts[parent]))

    def _only_calls(self, untraced: nn.Module, layer: nn.Module) -> bool:
        """Return whether the source of an untraced module uses a layer only by calling it."""
        uses = self.uses[untraced]
        return uses is not None and not any(
            layer in (self._parts[module] if use.how == OPENED else {module})
            for use in uses
            if use.how != CALLED
            for module in use.modules
        )

    def _calls_together(self, untraced: nn.Module, producer: nn.Module, layer: nn.Module) -> bool:
        """Return whether each module that an untraced module's source uses holds both layers or neither."""
        uses = self.uses[untraced]
        return uses is not None and not any(
            not parts.isdisjoint((producer, layer)) if use.how == OPENED else (producer in parts) != (layer in parts)
            for use in uses
            for parts in (self._parts[module] for module in use.modules)
        )

    def _find_dimensions(self, node: fx.Node, region: str) -> int | None:
        """Return the spatial dimensions of a node's value, known from the last convolution or pooling before it."""
        while True:
            if node.op == "call_module":
                module = self.modules[_join_path(region, str(node.target))]
                known = _read_dimensions(module)
                keeps = type(module).__module__ in _SAME_MODULES or isinstance(module, (nn.Identity, Whitening))
            else:
                known = 0 if node.target is torch.flatten and node.args[1:] == (1,) else None
                keeps = node.op == "call_function" and node.target in _SAME_FUNCTIONS
            if known is not None or not keeps or not node.all_input_nodes:
                return known
            node = node.all_input_nodes[0]


def _read_dimensions(module: nn.Module) -> int | None:
    """Return the spatial dimensions of a module's output, if its class determines them."""
    if isinstance(module, nn.Flatten):
        return 0 if (module.start_dim, module.end_dim) == (1, -1) else None
    return next((dimensions for dimensions, kinds in _KINDS_BY_DIMENSIONS.items() if isinstance(module, kinds)), None)


def _defines_forward(module: nn.Module) -> bool:
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _describe_failure(module: nn.Module, error: Exception) -> str:
    message = " ".join(str(error).split())
    message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
    return f"{type(module).__name__} cannot be traced ({type(error).__name__}: {message})"


def _join_path(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent and name else parent or name


def _join_names(names: set[str]) -> str:
    public = {name for name in names if not name.startswith("_")}
    return ", ".join(sorted(public or names))
