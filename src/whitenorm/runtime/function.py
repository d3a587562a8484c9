"""Calling an autograd function that has a context of its own, at the least cost."""

from __future__ import annotations

from typing import Any

import torch

from whitenorm.runtime.mode import is_tracing, is_transformed

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
