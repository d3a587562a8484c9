"""The state PyTorch is in (tracing, transforms, autocast), and functions whose behaviour depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# torch 2.6 does not tell of an export.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
# Parsed once: it takes longer than all else here.
_OLDER_VMAP = torch._C._dispatch_key_parse("VmapMode")


def is_transformed() -> bool:
    """Whether a compiler or TorchScript traces, or a transform such as vmap is at work.

    The older vmap, by which autograd takes batches of gradients at once (``is_grads_batched``, ``vectorize``), counts.
    """
    # No public function tells of transforms. The compiler comes first: it cannot trace the others.
    return (
        torch.compiler.is_compiling()
        or is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._dispatch_tls_is_dispatch_key_included(_OLDER_VMAP)
    )


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are taken, by ``forward_ad.dual_level``, ``torch.func.jvp`` or ``jacfwd``.

    Then differentiable operations run in place of our autograd functions: they carry tangents by themselves.
    """
    # False within an autograd function's forward and backward, where tangents are switched off.
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def is_tracing() -> bool:
    """Whether TorchScript's tracer or ``torch.export`` records: plain operations, and no functions of our own.

    An export keeps no gradient of ours, but would wrap an autograd function's forward in ``no_grad``.
    """
    return bool(_is_exporting()) or torch.jit.is_tracing()  # type: ignore[attr-defined]


def may_read_values(x: torch.Tensor) -> bool:
    """Whether Python may branch on values of a tensor: on a CPU alone, where nothing waits for them.

    Not where a compiler traces, or a transform, a dispatch mode (``make_fx``, fake tensors) or a subclass is at work.
    """
    plain = x.device.type == "cpu" and type(x) is torch.Tensor
    return plain and not is_transformed() and torch._C._len_torch_dispatch_stack() == 0


def may_write_in_place() -> bool:
    """Not while autograd records or tangents are carried, nor under a transform, as vmap's operands are batched."""
    return not (torch.is_grad_enabled() or is_transformed() or is_forward_mode())


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything narrower.

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
    """A context in which autocast leaves the products on this tensor's device alone."""
    device = tensor.device.type
    # What is compiled has autocast, and older compilers cannot trace the question.
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise unless the tensor holds real floating-point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"expected {name} to be floating-point (got {tensor.dtype}); convert it first: {name}.float()")


_WORTH_A_CALL = 2**17


class Scratch:
    """Memory for a block's intermediate result, used again for the next block.

    A call gives a tensor to pass as ``out``, or None where it would not help, or where nothing may be written in place.

    Padded, its rows are not a large power of two apart: such rows share the same few places in a cache, which slows
    down a product that reads them. A batched product cannot be written there without a detour.
    """

    def __init__(self, padded: bool = False) -> None:
        self._padded = padded
        self._helps = may_write_in_place()
        self._buffer: Tensor | None = None

    def __call__(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
        """A tensor of the shape of ``like``, and of its dtype unless another is given."""
        if not self._helps or nbytes(like) < _WORTH_A_CALL or like.device.type != "cpu":
            return None
        dtype = like.dtype if dtype is None else dtype
        if self._buffer is None or self._buffer.shape != like.shape or self._buffer.dtype != dtype:
            self._buffer = _empty(like, dtype, self._padded)
        return self._buffer


class Ring:
    """Several pieces of scratch memory, given out in turn: the first is written over when all have been used."""

    def __init__(self, pieces: int) -> None:
        self._helps = may_write_in_place()
        self._pieces: list[Tensor | None] = [None] * pieces
        self._given = 0

    def __call__(self, like: Tensor) -> Tensor | None:
        """A tensor of the shape of ``like``, a contiguous one."""
        if not self._helps or nbytes(like) < _WORTH_A_CALL or like.device.type != "cpu":
            return None
        self._given = (self._given + 1) % len(self._pieces)
        piece = self._pieces[self._given]
        if piece is None or piece.shape != like.shape:
            self._pieces[self._given] = piece = like.new_empty(like.shape)
        return piece


def nbytes(x: Tensor) -> int:
    """Bytes of all elements of a view, wherever they lie."""
    return x.numel() * x.element_size()


def _empty(like: Tensor, dtype: torch.dtype, padded: bool) -> Tensor:
    """A dense batch of matrices, with features next to each other if they are so in ``like``, otherwise positions."""
    if like.stride(-2) == 1 and like.stride(-1) != 1:
        return like.mT.new_empty(like.mT.shape, dtype=dtype).mT
    length = like.shape[-1]
    padding = 16 if padded and length * dtype.itemsize % 1024 == 0 else 0
    return like.new_empty(*like.shape[:-1], length + padding, dtype=dtype)[..., :length]


_EAGER: dict[type[torch.autograd.Function], type[torch.autograd.Function]] = {}
_TRANSFORMED: dict[type[torch.autograd.Function], type[torch.autograd.Function]] = {}


def call(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """``function.apply(*inputs)``, for functions with ``setup_context``.

    Transforms need such functions, but PyTorch asks for the signature of each at every call, which takes as long as
    several operations. Where no transform is at work, the same function with forward and context in one is called.
    TorchScript's tracer and ``torch.export`` get the operations themselves.

    A function's derivative in forward mode is named ``forward_derivative``, not ``jvp``, as compilers refuse functions
    that have a ``jvp``.

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
        >>> call(Double, x).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """
    if is_tracing():
        return function.forward(*inputs)
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    if is_transformed():
        if function not in _TRANSFORMED:
            _TRANSFORMED[function] = type(function.__name__, (function,), _forward_mode(function))
        return _TRANSFORMED[function].apply(*inputs)
    if function not in _EAGER:
        _EAGER[function] = _eager(function)
    return _EAGER[function].apply(*inputs)


def _forward_mode(function: type[torch.autograd.Function]) -> dict[str, Any]:
    derivative = getattr(function, "forward_derivative", None)
    return {} if derivative is None else {"jvp": staticmethod(derivative)}


def _eager(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    members |= _forward_mode(function)
    return type(function.__name__, (torch.autograd.Function,), members)


def vjp(function: Callable[..., Tensor], *tensors: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """As ``torch.func.vjp``: the function's value, and the map from its gradient to those of the tensors.

    ``torch.func`` refuses to work where hooks pack saved tensors away (``save_on_cpu``, ``inspect``), and autograd
    within transforms: each is used where it works. Where autograd records, the gradients are themselves differentiable.

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


def present_vjp(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None]
) -> Callable[[Tensor], list[Tensor | None]]:
    """The map from the function's gradient to those of the tensors, some of which may be None."""
    present = [i for i, tensor in enumerate(tensors) if tensor is not None]

    def of_present(*values: Tensor) -> Tensor:
        replaced = dict(zip(present, values, strict=True))
        return function(*[replaced.get(i) for i in range(len(tensors))])

    pullback = vjp(of_present, *[tensor for tensor in tensors if tensor is not None])[1]

    def of_all(grad: Tensor) -> list[Tensor | None]:
        grads = dict(zip(present, pullback(grad), strict=True))
        return [grads.get(i) for i in range(len(tensors))]

    return of_all
