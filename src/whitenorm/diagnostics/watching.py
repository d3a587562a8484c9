"""Hooks on the norms of a model, and what they see in a step."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from whitenorm.diagnostics.samples import Seen, seen
from whitenorm.layers import Whitening

_BATCH = nn.modules.batchnorm._BatchNorm
_INSTANCE = nn.modules.instancenorm._InstanceNorm
_NORMS = (Whitening, _BATCH, _INSTANCE, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


# How many contexts run without the compiler, and the one that they share.
_without_compiler = 0
_eager = ExitStack()


@contextmanager
def without_compiler() -> Iterator[None]:
    """A context in which compiled models run eagerly, as compiled code skips hooks.

    Contexts may end in any order, as those of several monitors do: the last one restores the compiler.
    """
    global _without_compiler
    # Where the compiler was never loaded, which takes seconds, nothing is compiled.
    if _without_compiler == 0 and "torch._dynamo" in sys.modules:
        _eager.enter_context(torch.compiler.set_stance("force_eager"))
    _without_compiler += 1
    try:
        yield
    finally:
        _without_compiler -= 1
        if _without_compiler == 0:
            _eager.close()


def norms_of(model: nn.Module) -> dict[nn.Module, str]:
    """The norms of a model and their names; an error when there are none."""
    layers: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, _NORMS)
    }
    if not layers:
        raise ValueError(
            f"expected a model with norms (got {type(model).__name__} without a whitening, Batch-, Instance-, Group-, "
            "Layer- or RMSNorm)"
        )
    return layers


class Watch:
    """Hooks on the layers, and what they saw of the first time each runs."""

    def __init__(self, layers: dict[nn.Module, str]) -> None:
        self.layers = layers
        self.order: list[nn.Module] = []
        self.seconds: dict[nn.Module, float] = {}
        self.inputs: dict[nn.Module, Seen] = {}
        self.outputs: dict[nn.Module, Seen] = {}
        self.gradients: dict[nn.Module, dict[str, Tensor]] = {layer: {} for layer in layers}
        self.saved: dict[nn.Module | None, int] = {}
        self.total = 0.0
        # Of the hooks themselves.
        self.cost = 0.0
        self._on_tensors: list[RemovableHandle] = []
        self._active: list[nn.Module] = []

    @contextmanager
    def clock(self) -> Iterator[None]:
        """How long each layer takes, and all of it but what is spent on watching."""
        starts: dict[nn.Module, float] = {}

        def before(layer: nn.Module, inputs: Any, named: Any) -> None:
            starts[layer] = _now(layer)

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.seconds[layer] = self.seconds.get(layer, 0.0) + _now(layer) - starts[layer]

        device = next(iter(self.layers))
        with self._hooked(before, after, innermost=True):
            start, cost = _now(device), self.cost
            yield
            self.total = _now(device) - start - (self.cost - cost)

    @contextmanager
    def features(self) -> Iterator[None]:
        """Rows of the layers' inputs and outputs, and the norms of their gradients."""

        def before(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            start = _now(layer)
            self._active.append(layer)
            changed = None
            if layer not in self.inputs:
                x = inputs[0] if inputs else next(iter(named.values()))
                self.order.append(layer)
                self.inputs[layer] = seen(layer, x)
                # Of its own, so that its gradient is what comes through the norm, and not by a shortcut around it.
                alias = x.view_as(x)
                self._watch_gradient(layer, "input", alias)
                changed = ((alias, *inputs[1:]), named) if inputs else (inputs, {**named, next(iter(named)): alias})
            self.cost += _now(layer) - start
            return changed

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            start = _now(layer)
            self._active.pop()
            output = output[0] if isinstance(output, tuple) else output
            if layer not in self.outputs:
                self.outputs[layer] = seen(layer, output)
                self._watch_gradient(layer, "output", output)
            self.cost += _now(layer) - start

        with self._hooked(before, after):
            yield

    @contextmanager
    def memory(self, model: nn.Module) -> Iterator[None]:
        """What is kept for backward but parameters, by each layer and by all else; inside of :meth:`features`."""
        kept: dict[int, tuple[nn.Module | None, int]] = {}

        def count(tensor: Tensor) -> None:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                kept.setdefault(storage.data_ptr(), (self._active[-1] if self._active else None, storage.nbytes()))

        try:
            with _calling(count):
                yield
        finally:
            # Those of lazy modules have no storage before.
            for parameter in model.parameters():
                if not is_lazy(parameter):
                    kept.pop(parameter.untyped_storage().data_ptr(), None)
            for owner, size in kept.values():
                self.saved[owner] = self.saved.get(owner, 0) + size

    def _watch_gradient(self, layer: nn.Module, which: str, tensor: Tensor) -> None:
        def keep(grad: Tensor) -> None:
            start = time.perf_counter()
            self.gradients[layer][which] = grad.detach().norm()
            self.cost += time.perf_counter() - start

        if tensor.requires_grad:
            self._on_tensors.append(tensor.register_hook(keep))

    def release(self) -> None:
        """Take the hooks off tensors, of which some, such as a learned input, outlive the step."""
        for hook in self._on_tensors:
            hook.remove()
        self._on_tensors.clear()

    @contextmanager
    def _hooked(
        self, before: Callable[..., Any], after: Callable[..., None], innermost: bool = False
    ) -> Iterator[None]:
        """Hooks around the layers; the innermost run last before and first after the layer."""
        hooks = []
        try:
            for layer in self.layers:
                hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
                hooks.append(layer.register_forward_hook(after, prepend=innermost))
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _Here(threading.local):
    """What this thread's watches call with a tensor that is kept for backward."""

    def __init__(self) -> None:
        self.counts: list[Callable[[Tensor], None]] = []


_HERE = _Here()


@contextmanager
def _calling(count: Callable[[Tensor], None]) -> Iterator[None]:
    """Call ``count`` with what is kept for backward, unless the caller has hooks on it, which may change it.

    Of nested hooks torch calls the innermost alone: those of the first watch call all.
    """
    counts = _HERE.counts

    def pack(tensor: Tensor) -> Tensor:
        for each in counts:
            each(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor) if _may_hook() else nullcontext():
        counts.append(count)
        try:
            yield
        finally:
            counts.remove(count)


def _may_hook() -> bool:
    """Whether hooks on saved tensors are allowed, and there are none."""
    autograd: Any = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return False
    try:
        # No function tells in all versions, but this refuses where there are some.
        with disable_saved_tensors_hooks("hooks on saved tensors"):
            return True
    except RuntimeError:
        return False


def _now(layer: nn.Module) -> float:
    """The time, when all work before it is done."""
    tensor = next(itertools.chain(layer.parameters(), layer.buffers()), None)
    if tensor is not None and tensor.device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(tensor.device)
    return time.perf_counter()
