"""The state PyTorch is in (tracing, transforms, autocast), and functions whose behaviour depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# torch 2.6 has no is_exporting.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
# Parsed once, because parsing takes longer than the check.
_OLDER_VMAP = torch._C._dispatch_key_parse("VmapMode")


def is_transformed() -> bool:
    """Return whether a compiler or TorchScript traces, or a transform such as vmap is active.

    This includes the older vmap, with which autograd takes batches of gradients (``is_grads_batched``, ``vectorize``).
    """
    # There is no public function for transforms. The compiler comes first, because it cannot trace the other checks; it
    # is also active in torch.export.
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._dispatch_tls_is_dispatch_key_included(_OLDER_VMAP)
    )


def is_forward_mode() -> bool:
    """Return whether forward-mode derivatives are taken (``forward_ad.dual_level``, ``torch.func.jvp``, ``jacfwd``).

    Differentiable operations then run in place of the library's autograd functions, because they carry tangents.
    """
    # False inside an autograd function's forward and backward, where tangents are switched off.
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def is_tracing() -> bool:
    """Return whether TorchScript's tracer or ``torch.export`` records plain operations.

    An export would wrap the forward of an autograd function in ``no_grad``, so it gets the operations themselves.
    """
    return bool(_is_exporting()) or torch.jit.is_tracing()  # type: ignore[attr-defined]


def may_read_values(x: Tensor) -> bool:
    """Return whether Python may branch on values of a tensor.

    Only on a CPU, where this waits for nothing, and not while a compiler traces or a transform, a dispatch mode
    (``make_fx``, fake tensors) or a tensor subclass is active.
    """
    is_plain = x.device.type == "cpu" and type(x) is Tensor
    return is_plain and not is_transformed() and torch._C._len_torch_dispatch_stack() == 0


def may_write_in_place() -> bool:
    """Return whether operations may write into tensors that were allocated before.

    Not while autograd records or carries tangents, nor under a transform, because vmap's operands are batched.
    """
    carries_tangents = forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()
    return not (torch.is_grad_enabled() or is_transformed() or carries_tangents)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of statistics and solvers: float64 for float64, float32 for everything narrower.

    Example::

        >>> compute_dtype(torch.bfloat16), compute_dtype(torch.float64)
        (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64: on its own device, or on the CPU if the device has no float64.

    Example::

        >>> to_float64(torch.ones(2, dtype=torch.float16))
        tensor([1., 1.], dtype=torch.float64)
    """
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast is disabled on the device of a tensor."""
    device = tensor.device.type
    # Older compilers cannot trace is_autocast_available; compiled devices have autocast.
    if not torch.compiler.is_compiling() and not (
        torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    ):
        # Entering a context takes longer than these checks.
        return nullcontext()
    return torch.autocast(device, enabled=False)


def smallest(dtype: torch.dtype) -> float:
    """Return the floor of eigenvalues and traces: its power -3/2, which every gradient contains, is still finite."""
    return float(torch.finfo(dtype).tiny ** 0.5)


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise unless the tensor holds real floating-point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"expected {name} to be floating-point (got {tensor.dtype}); convert it first: {name}.float()")


_EAGER: dict[type[torch.autograd.Function], type[torch.autograd.Function]] = {}
_FUNCTORCH: dict[type[torch.autograd.Function], type[torch.autograd.Function]] = {}


def apply_function(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Return ``function.apply(*inputs)`` for a function with ``setup_context``, at lower cost in eager mode.

    Transforms need ``setup_context``, but ``apply`` then inspects the function's signature at every call, which takes
    as long as several operations. In eager mode, a copy of the function runs whose forward takes the context.
    TorchScript's tracer and ``torch.export`` get the operations themselves.

    The derivative in forward mode is named ``forward_derivative``, not ``jvp``, because compilers refuse functions that
    have a ``jvp``.

    Example::

        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output): ...
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return 2 * grad
        >>> x = torch.ones(2, requires_grad=True)
        >>> apply_function(Double, x).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """
    if not is_transformed():
        if function not in _EAGER:
            _EAGER[function] = _merge_context(function)
        return _EAGER[function].apply(*inputs)
    if is_tracing():
        return function.forward(*inputs)
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    if function not in _FUNCTORCH:
        _FUNCTORCH[function] = type(function.__name__, (function,), _forward_mode_members(function))
    return _FUNCTORCH[function].apply(*inputs)


def _forward_mode_members(function: type[torch.autograd.Function]) -> dict[str, Any]:
    derivative = getattr(function, "forward_derivative", None)
    return {} if derivative is None else {"jvp": staticmethod(derivative)}


def _merge_context(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Return the same function with ``forward`` and ``setup_context`` in one."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(function.__name__, (torch.autograd.Function,), members | _forward_mode_members(function))


def vjp(function: Callable[..., Tensor], *tensors: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Return a function's value, and the map from its gradient to those of the tensors, as ``torch.func.vjp`` does.

    ``torch.func`` does not work under saved-tensor hooks (``save_on_cpu``), and autograd not inside transforms, so each
    is used where it works. Where autograd records, the gradients are themselves differentiable.

    Example::

        >>> with torch.no_grad():
        ...     value, pullback = vjp(torch.mul, torch.tensor(2.0), torch.tensor(3.0))
        >>> value, pullback(torch.tensor(1.0))
        (tensor(6.), (tensor(3.), tensor(2.)))
    """
    if is_transformed():
        value, back = torch.func.vjp(function, *tensors)[:2]
        return value, back
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: one tensor may be given twice.
        inputs = [tensor.view_as(tensor) if tensor.requires_grad else tensor.detach() for tensor in tensors]
        output = function(*[tensor if tensor.requires_grad else tensor.requires_grad_() for tensor in inputs])

    def pullback(grad: Tensor) -> tuple[Tensor, ...]:
        if not output.requires_grad:
            return tuple([torch.zeros_like(tensor) for tensor in inputs])
        return torch.autograd.grad(output, inputs, grad, create_graph=recording, materialize_grads=True)

    return output if recording else output.detach(), pullback


def vjp_of_optional(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None]
) -> Callable[[Tensor], list[Tensor | None]]:
    """Return the map from a function's gradient to those of its tensors, some of which may be None."""
    present = [i for i, tensor in enumerate(tensors) if tensor is not None]

    def call_with_all(*values: Tensor) -> Tensor:
        by_index = dict(zip(present, values, strict=True))
        return function(*[by_index.get(i) for i in range(len(tensors))])

    pullback = vjp(call_with_all, *[tensor for tensor in tensors if tensor is not None])[1]

    def pull_back_all(grad: Tensor) -> list[Tensor | None]:
        grads = dict(zip(present, pullback(grad), strict=True))
        return [grads.get(i) for i in range(len(tensors))]

    return pull_back_all
