"""The gradient of a plain function within a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whitenorm.runtime.mode import is_transformed


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
