"""Symbolic traces that also record which attributes the code reads, and which values it keeps after the forward."""

from __future__ import annotations

import copy
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

# Attributes that fx itself reads while the model's code runs.
_READ_BY_FX = {"forward", "named_modules", "_modules", "_parameters", "_buffers", "__class__", "__dict__"}


class Trace(NamedTuple):
    """The graph of a module's forward.

    Attributes:
        graph: the graph that ``torch.fx`` records.
        reads: the attributes that the code reads from each leaf, by the leaf's name.
        kept_nodes: nodes whose values outlive the forward, in an attribute, a container, a closure or a global.
    """

    graph: fx.Graph
    reads: dict[str, set[str]]
    kept_nodes: set[fx.Node]


def trace_module(module: nn.Module, is_leaf: Callable[[nn.Module], bool], arguments: dict[str, Any]) -> Trace:
    """Trace a copy of a module, with submodules that cannot be traced as leaves.

    Errors that the module's own code raises when it is traced are passed on.

    Args:
        module: the module to trace.
        is_leaf: whether a submodule is recorded as one call.
        arguments: fixed values of arguments of forward.
    """
    if "forward" in vars(module):
        raise TypeError("its forward is replaced on the instance")
    opaque: set[type] = set()
    while True:
        tracer = _Tracer(is_leaf, opaque)
        try:
            # The code runs on proxies, which must not stay in the model.
            return tracer.record(copy_module(module), arguments)
        except Exception:
            if tracer.culprit is None or tracer.culprit in opaque:
                raise
            opaque.add(tracer.culprit)


def copy_module(module: nn.Module) -> Any:
    """Return a deep copy of a module, also if it keeps tensors with gradients, which ``copy.deepcopy`` rejects."""
    tensors = [leaf for part in module.modules() for leaf in tree_leaves(vars(part)) if isinstance(leaf, Tensor)]
    return copy.deepcopy(module, {id(tensor): tensor.detach() for tensor in tensors if not tensor.is_leaf})


class _Tracer(fx.Tracer):
    def __init__(self, is_leaf: Callable[[nn.Module], bool], opaque: set[type]) -> None:
        super().__init__()
        self.culprit: type | None = None
        self._is_leaf, self._opaque = is_leaf, opaque
        self._proxies: list[tuple[fx.Node, weakref.ref[fx.Proxy]]] = []
        self._reads: dict[int, set[str]] = {}
        self._is_recording = False

    def record(self, module: nn.Module, arguments: dict[str, Any]) -> Trace:
        names = {id(part): name for name, part in module.named_modules() if self._is_leaf(part)}
        self._reads = {part: set() for part in names}
        with self._record_reads(), warnings.catch_warnings():
            # The model's own warnings come again when the user runs it.
            warnings.simplefilter("ignore")
            graph = self.trace(module, arguments)
        return Trace(graph, {names[part]: read for part, read in self._reads.items()}, self._find_kept_nodes())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        with self._pause_recording():
            is_leaf = self._is_leaf(m) or type(m) in self._opaque
            return is_leaf or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            # The innermost module raises first.
            self.culprit = self.culprit or type(m)
            raise

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> Any:
        root_args = super().create_args_for_root(*args, **kwargs)
        # The model's code runs next.
        self._is_recording = True
        return root_args

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = super().proxy(node)
        self._proxies.append((node, weakref.ref(proxy)))
        return proxy

    def _find_kept_nodes(self) -> set[fx.Node]:
        if any(proxy() is not None for _, proxy in self._proxies):
            # Some are only kept by reference cycles.
            gc.collect()
        return {node for node, proxy in self._proxies if proxy() is not None}

    @contextmanager
    def _record_reads(self) -> Iterator[None]:
        """Patch attribute access of modules during the trace, as fx patches their calls."""

        def read(part: nn.Module, name: str) -> Any:
            if self._is_recording and name not in _READ_BY_FX and id(part) in self._reads:
                self._reads[id(part)].add(name)
            return super(nn.Module, part).__getattribute__(name)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            self._is_recording = False
            del nn.Module.__getattribute__

    @contextmanager
    def _pause_recording(self) -> Iterator[None]:
        before, self._is_recording = self._is_recording, False
        try:
            yield
        finally:
            self._is_recording = before


def read_default_arguments(module: nn.Module) -> dict[str, Any]:
    """Return the arguments of forward that have a default, with their defaults."""
    parameters = inspect.signature(module.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}
