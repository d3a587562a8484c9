"""Cost of a layer: arithmetic, and memory saved for backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from whitenorm.layers.base import unchanged_buffers


def flops(module: nn.Module, *inputs: Any) -> int:
    """Return the number of multiplications and additions of one forward pass, in the module's current mode.

    Matrix products and convolutions are counted, by ``torch.utils.flop_counter``. The module's buffers, such as running
    statistics, are restored.

    Example::

        >>> flops(nn.Linear(4, 5), torch.randn(3, 4))
        120
    """
    # This imports Triton, which takes longer than all of this library.
    from torch.utils.flop_counter import FlopCounterMode

    with unchanged_buffers(module), FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return int(counter.get_total_flops())


def saved_bytes(module: nn.Module, *inputs: Any) -> int:
    """Return the bytes that one forward pass saves for backward, with its inputs and without its parameters.

    Example::

        >>> x = torch.randn(8, 16, 4, 4)
        >>> saved_bytes(nn.BatchNorm2d(16), x) >= x.nbytes
        True
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    leaves = [
        value.detach().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    with unchanged_buffers(module), torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(*leaves)
    del output
    return sum(size for pointer, size in storages.items() if pointer not in parameters)
