"""Hooks that record what the norms of a model see and cost in one step."""

from __future__ import annotations

import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from whitenorm.layers import LayerWhitening, Whitening

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm
_NORMS = (Whitening, _BATCH_NORM, _INSTANCE_NORM, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# Rows of features that are measured, drawn at random if there are more.
_MAX_ROWS = 4096
# Channels whose covariance is computed, the first ones, in whole groups: the cost grows with the cube.
_MAX_CHANNELS = 2048


def map_norms_to_names(model: nn.Module) -> dict[nn.Module, str]:
    """Return the norms of a model with their names, or raise if it has none."""
    layers: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, _NORMS)
    }
    if not layers:
        raise ValueError(
            f"expected a model with norms (got {type(model).__name__} without a whitening, Batch-, Instance-, Group-, "
            "Layer- or RMSNorm)"
        )
    return layers


class FeatureRows(NamedTuple):
    """Sampled rows ``(R, C)`` of a layer's input or output, and its full shape ``(N, C, ...)``."""

    rows: Tensor
    shape: torch.Size


class Recorder:
    """Features, gradients, times and saved memory of norms in one step, at the first call of each."""

    def __init__(self, layers: dict[nn.Module, str]) -> None:
        self.layers = layers
        # In the order in which they ran.
        self.order: list[nn.Module] = []
        self.seconds: dict[nn.Module, float] = {}
        self.inputs: dict[nn.Module, FeatureRows] = {}
        self.outputs: dict[nn.Module, FeatureRows] = {}
        # Norms of the gradients, by "input" and "output".
        self.gradients: dict[nn.Module, dict[str, Tensor]] = {layer: {} for layer in layers}
        # Under None what no norm saved.
        self.saved_bytes: dict[nn.Module | None, int] = {}
        self.total_seconds = 0.0
        # Seconds spent in the hooks themselves.
        self.cost = 0.0
        self._tensor_hooks: list[RemovableHandle] = []
        self._active: list[nn.Module] = []

    @contextmanager
    def record_times(self) -> Iterator[None]:
        """Record the time of each layer, and of all code in the context, without that of :meth:`record_features`."""
        starts: dict[nn.Module, float] = {}

        def before(layer: nn.Module, args: Any, kwargs: Any) -> None:
            starts[layer] = _device_time(layer)

        def after(layer: nn.Module, args: Any, output: Any) -> None:
            self.seconds[layer] = self.seconds.get(layer, 0.0) + _device_time(layer) - starts[layer]

        any_layer = next(iter(self.layers))
        with self._layer_hooks(before, after, innermost=True):
            start, cost = _device_time(any_layer), self.cost
            yield
            self.total_seconds = _device_time(any_layer) - start - (self.cost - cost)

    @contextmanager
    def record_features(self) -> Iterator[None]:
        """Record rows of the layers' inputs and outputs, and the norms of their gradients."""

        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            start = _device_time(layer)
            self._active.append(layer)
            replaced = None
            if layer not in self.inputs:
                x = args[0] if args else next(iter(kwargs.values()))
                self.order.append(layer)
                self.inputs[layer] = _sample_rows(layer, x)
                # A view of x receives the gradient that comes through the norm, and not through a shortcut around it.
                alias = x.view_as(x)
                self._record_gradient(layer, "input", alias)
                replaced = ((alias, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): alias})
            self.cost += _device_time(layer) - start
            return replaced

        def after(layer: nn.Module, args: Any, output: Any) -> None:
            start = _device_time(layer)
            self._active.pop()
            output = output[0] if isinstance(output, tuple) else output
            if layer not in self.outputs:
                self.outputs[layer] = _sample_rows(layer, output)
                self._record_gradient(layer, "output", output)
            self.cost += _device_time(layer) - start

        with self._layer_hooks(before, after):
            yield

    @contextmanager
    def record_saved_bytes(self, model: nn.Module) -> Iterator[None]:
        """Record what each layer saves for backward, parameters excluded; needs :meth:`record_features` around it."""
        storages: dict[int, tuple[nn.Module | None, int]] = {}

        def count(tensor: Tensor) -> None:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                owner = self._active[-1] if self._active else None
                storages.setdefault(storage.data_ptr(), (owner, storage.nbytes()))

        try:
            with _observe_saved_tensors(count):
                yield
        finally:
            # Parameters of lazy modules have no storage before their first forward.
            for parameter in model.parameters():
                if not is_lazy(parameter):
                    storages.pop(parameter.untyped_storage().data_ptr(), None)
            for owner, size in storages.values():
                self.saved_bytes[owner] = self.saved_bytes.get(owner, 0) + size

    def _record_gradient(self, layer: nn.Module, which: str, tensor: Tensor) -> None:
        def hook(grad: Tensor) -> None:
            start = time.perf_counter()
            self.gradients[layer][which] = grad.detach().norm()
            self.cost += time.perf_counter() - start

        if tensor.requires_grad:
            self._tensor_hooks.append(tensor.register_hook(hook))

    def remove_tensor_hooks(self) -> None:
        """Remove the hooks on tensors, some of which, such as a learned input, outlive the step."""
        for hook in self._tensor_hooks:
            hook.remove()
        self._tensor_hooks.clear()

    @contextmanager
    def _layer_hooks(
        self, before: Callable[..., Any], after: Callable[..., None], innermost: bool = False
    ) -> Iterator[None]:
        """Register hooks on the layers; ``innermost`` ones run last before a layer and first after it."""
        handles = []
        try:
            for layer in self.layers:
                handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(layer.register_forward_hook(after, prepend=innermost))
            yield
        finally:
            for handle in handles:
                handle.remove()


def _sample_rows(layer: nn.Module, x: Tensor) -> FeatureRows:
    """Copy some rows of a layer's input or output, into which later operations may write."""
    x = _move_channels_second(layer, x.detach())
    if x.ndim < 2:
        return FeatureRows(x.clone(), x.shape)
    values = x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)  # N, C, L
    indices = _sample_indices(values.shape[0] * values.shape[2]).to(x.device)
    group_size = getattr(layer, "group_size", None) or 1
    values = values[:, : max(_MAX_CHANNELS // group_size, 1) * group_size]
    return FeatureRows(values[indices // values.shape[2], :, indices % values.shape[2]], x.shape)


def _move_channels_second(layer: nn.Module, x: Tensor) -> Tensor:
    """Return ``(N, C, ...)``, or ``(positions, C)`` of the tokens ``(..., C)`` of a layer norm."""
    if not isinstance(layer, (nn.LayerNorm, nn.RMSNorm, LayerWhitening)):
        return x
    shape = tuple(layer.normalized_shape)
    is_last = tuple(x.shape[-len(shape) :]) == shape
    is_second = len(shape) == 1 and x.ndim > 2 and x.shape[1] == shape[0]
    # Some libraries' LayerNorms normalize dimension 1; their class names decide where the shape fits both.
    if is_second and (not is_last or "2d" in type(layer).__name__):
        return x
    return x.reshape(-1, math.prod(shape))


@functools.lru_cache(maxsize=64)
def _sample_indices(num_rows: int) -> Tensor:
    """Return the indices of the rows that are measured, the same at every call."""
    if num_rows <= _MAX_ROWS:
        return torch.arange(num_rows)
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))[:_MAX_ROWS]


class _ThreadObservers(threading.local):
    """Callbacks of this thread's recorders for tensors that are saved for backward."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Tensor], None]] = []


_OBSERVERS = _ThreadObservers()


@contextmanager
def _observe_saved_tensors(callback: Callable[[Tensor], None]) -> Iterator[None]:
    """Call back with every tensor saved for backward, unless the user has hooks on these, which may change them.

    PyTorch calls only the innermost of nested hooks: those of the first recorder call all callbacks.
    """
    callbacks = _OBSERVERS.callbacks

    def pack(tensor: Tensor) -> Tensor:
        for observer in callbacks:
            observer(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor) if _can_hook_saved_tensors() else nullcontext():
        callbacks.append(callback)
        try:
            yield
        finally:
            callbacks.remove(callback)


def _can_hook_saved_tensors() -> bool:
    """Return whether hooks on saved tensors are allowed and none is registered."""
    autograd: Any = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return False
    try:
        # No public function says so in all supported versions, but this one raises if there are hooks.
        with disable_saved_tensors_hooks("hooks on saved tensors"):
            return True
    except RuntimeError:
        return False


def _device_time(layer: nn.Module) -> float:
    """Return the time after all work on the layer's device is done."""
    tensor = next(itertools.chain(layer.parameters(), layer.buffers()), None)
    if tensor is not None and tensor.device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(tensor.device)
    return time.perf_counter()
