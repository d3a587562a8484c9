"""What follows what in a model: where the input of a layer comes from, and of how many dimensions it is."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from whitenorm.layers.base import Whitening
from whitenorm.models.norms import BATCH
from whitenorm.models.tracing import Trace, default_arguments, trace_module
from whitenorm.models.uses import CALLED, OPENED, find_uses

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
PRODUCERS = (*CONVOLUTIONS, nn.Linear)
# timm's convolution whose forward only pads before it convolves.
_ONLY_PADS = "Conv2dSame.forward"
# What leaves the number of dimensions as it is.
_SAME_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.dropout", "torch.nn.modules.batchnorm")
_SAME_FUNCTIONS = {torch.relu, torch.cat, F.relu, F.silu, F.gelu}
_KINDS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d),
}
# The message of an exception may be a page.
_MESSAGE = 120

NO_PRODUCER = "its input is not the output of a convolution or linear layer"


class Source(NamedTuple):
    """The source of a layer's input, as far as it is known.

    ``producer`` is the module that makes it for this layer alone; where there is none, ``why`` says why. The spatial
    ``dimensions`` are None where they are not known; vectors ``(N, C)`` have none, which is 0. A layer that is more
    than called with its input ``stays``: nothing else can take its place.
    """

    producer: str | None = None
    dimensions: int | None = None
    why: str = ""
    stays: bool = False


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a convolution or linear layer that uses its weight as it is.

    A subclass may have a forward of its own that changes it, and a parametrization computes it anew.
    """
    if parametrize.is_parametrized(module) or any(is_lazy(parameter) for parameter in module.parameters(False)):
        return False
    kinds = [kind for kind in PRODUCERS if isinstance(module, kind)]
    return any(_same_forward(type(module), kind) for kind in kinds) or (
        bool(kinds) and is_timm(type(module).forward, _ONLY_PADS)
    )


def is_timm(function: object, name: str) -> bool:
    """Whether a function is timm's of this qualified name, without importing timm."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith("timm.") and getattr(function, "__qualname__", "") == name


def _same_forward(subclass: type, kind: type) -> bool:
    # A convolution's forward calls the second.
    methods = [name for name in ("__call__", "forward", "_conv_forward") if hasattr(kind, name)]
    return all(getattr(subclass, name) is getattr(kind, name) for name in methods)


def _is_leaf(module: nn.Module) -> bool:
    """Whether a trace shows a module as one call, without what is inside."""
    return isinstance(module, (Whitening, BATCH)) or is_plain(module)


class _Call(NamedTuple):
    """A call of a module, in the trace of the region that is named."""

    node: fx.Node
    region: str
    is_kept: bool


class Flow:
    """How a model calls its layers, from symbolic traces.

    The model is traced whole. Where that fails, each child is traced alone, and so on; the code of what could not be
    traced is read for other uses of what is in the children.
    """

    def __init__(self, model: nn.Module, layers: set[nn.Module]) -> None:
        self.model = model
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.calls: dict[nn.Module, list[_Call]] = defaultdict(list)
        self.reads: dict[nn.Module, set[str]] = defaultdict(set)
        self.failures: dict[nn.Module, str] = {}
        self._trace(layers)
        self.uses = {module: find_uses(module) for module in self.failures}
        self._parts = {module: set(module.modules()) for module in self.modules.values()} if self.failures else {}

    def _trace(self, layers: set[nn.Module]) -> None:
        """Trace the model, then what these traces leave out, as long as layers are in it."""
        pending, seen = [""], set()
        while pending:
            name = pending.pop()
            module = self.modules[name]
            if module in seen or _is_leaf(module) or layers.isdisjoint(module.modules()):
                continue
            seen.add(module)
            if _has_forward(module):
                try:
                    pending += self._add(name, self._trace_alone(name))
                    continue
                # The user's code fails in as many ways as there is code.
                except Exception as error:
                    self.failures[module] = _describe(module, error)
            pending += [_join(name, child) for child, _ in module.named_children()]

    def _trace_alone(self, name: str) -> Trace:
        module = self.modules[name]
        defaults = default_arguments(module)
        if name and defaults:
            raise TypeError(f"it is not known with which {', '.join(defaults)} it is called")
        return trace_module(module, _is_leaf, defaults)

    def _add(self, region: str, trace: Trace) -> list[str]:
        """Take over a trace, and return the names of the modules that it calls without showing what is inside."""
        closed = []
        for node in trace.graph.nodes:
            if node.op == "call_module":
                name = _join(region, str(node.target))
                self.calls[self.modules[name]].append(_Call(node, region, node in trace.kept))
                closed.append(name)
        for target, names in trace.reads.items():
            self.reads[self.modules[_join(region, target)]] |= names
        return closed

    def source(self, name: str) -> Source:
        """Return the source of a layer's input."""
        layer = self.modules[name]
        calls = self.calls[layer]
        if self.reads[layer]:
            return Source(why=f"the model reads its {_join_names(self.reads[layer])}", stays=True)
        if any(len(call.node.args) != 1 or call.node.kwargs for call in calls):
            return Source(why="it is called with more than its input", stays=True)
        failure = next((failure for failure in self._around(layer) if not self._only_calls(failure, layer)), None)
        if failure is not None:
            return Source(why=f"{self.failures[failure]}, and may use it in other ways than calling it", stays=True)
        if not calls:
            why = next(
                (self.failures[failure] for failure in self._around(layer)), "the model's forward does not call it"
            )
            return Source(why=why)
        if len(calls) > 1:
            return Source(why="it is called more than once")
        return self._source_of(calls[0], layer)

    def _source_of(self, call: _Call, layer: nn.Module) -> Source:
        inputs = call.node.all_input_nodes
        if not inputs:
            return Source(why=NO_PRODUCER)
        before = inputs[0]
        dimensions = self._dimensions(before, call.region)
        target = _join(call.region, str(before.target))
        producer = self.modules.get(target) if before.op == "call_module" else None
        if not isinstance(producer, PRODUCERS):
            return Source(None, dimensions, NO_PRODUCER)
        why = self._other_use(producer, before, layer)
        return Source(None if why else target, dimensions, why)

    def _other_use(self, producer: nn.Module, node: fx.Node, layer: nn.Module) -> str:
        """Describe other uses of the output or weight of the module before a layer; empty if there are none."""
        calls = self.calls[producer]
        if len(calls) > 1:
            return "the layer before it is called more than once"
        if len(node.users) > 1:
            return "the output of the layer before it is also used elsewhere"
        if calls[0].is_kept:
            return "the model keeps the output of the layer before it"
        changed = {name for name in self.reads[producer] if name == "groups" or name not in vars(producer)}
        if changed:
            return f"the model reads the {_join_names(changed)} of the layer before it"
        for failure in self._around(producer) | self._around(layer):
            if not self._calls_together(failure, producer, layer):
                return f"{self.failures[failure]}, and may use the layer before it alone"
        return ""

    def _around(self, module: nn.Module) -> dict[nn.Module, None]:
        """The modules that could not be traced and hold this one, the innermost first."""
        around = [failure for failure in self.failures if module in self._parts[failure]]
        return dict.fromkeys(sorted(around, key=lambda failure: len(self._parts[failure])))

    def _only_calls(self, failure: nn.Module, layer: nn.Module) -> bool:
        """Whether the code of a module that could not be traced uses a layer in no other way than by calling it."""
        uses = self.uses[failure]
        return uses is not None and not any(
            layer in (self._parts[module] if use.how == OPENED else {module})
            for use in uses
            if use.how != CALLED
            for module in use.modules
        )

    def _calls_together(self, failure: nn.Module, producer: nn.Module, layer: nn.Module) -> bool:
        """Whether the code of a module that could not be traced only calls modules that hold both layers or neither."""
        uses = self.uses[failure]
        return uses is not None and not any(
            not parts.isdisjoint((producer, layer)) if use.how == OPENED else (producer in parts) != (layer in parts)
            for use in uses
            for parts in (self._parts[module] for module in use.modules)
        )

    def _dimensions(self, node: fx.Node, region: str) -> int | None:
        """Those that a convolution or pooling before tells of, seen through what surely leaves them as they are."""
        while True:
            if node.op == "call_module":
                module = self.modules[_join(region, str(node.target))]
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


def _has_forward(module: nn.Module) -> bool:
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _describe(module: nn.Module, error: Exception) -> str:
    message = " ".join(str(error).split())
    message = message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]}…"
    return f"{type(module).__name__} cannot be traced ({type(error).__name__}: {message})"


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent and name else parent or name


def _join_names(names: set[str]) -> str:
    public = {name for name in names if not name.startswith("_")}
    return ", ".join(sorted(public or names))
