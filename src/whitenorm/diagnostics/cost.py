"""Cost of a layer: arithmetic, memory saved for backward, and the kernels that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from whitenorm import functional
from whitenorm.layers.base import unchanged_buffers
from whitenorm.ops import fixed_map
from whitenorm.ops.native.library import load_library
from whitenorm.ops.types import Kernels


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


def kernels_used(run: Callable[[], object]) -> tuple[str, ...]:
    """Return the kernels that whitening layers choose while a function runs, in alphabetical order.

    They are ``"torch"``, ``"triton"``, or the binary of the C++ kernels, which names the instruction set. Two kernels
    may share a layer: where a matrix is solved for by torch between C++ passes over the input, both are returned.

    Example::

        >>> layer, x = whitenorm.DecorrelatedBatchNorm(32).double(), torch.randn(8, 32, dtype=torch.float64)
        >>> kernels_used(lambda: layer(x))
        ('torch',)
    """
    backends: set[str] = set()
    with _record_backends(backends):
        run()
    return tuple(sorted(load_library().description if name == "native" else name for name in backends))


@contextmanager
def _record_backends(backends: set[str]) -> Iterator[None]:
    """Add the packages of the kernels that are chosen within the context to a set."""
    modules: tuple[Any, ...] = (functional, fixed_map)
    choose = modules[0].choose_kernels

    def choose_and_record(*args: Any, **kwargs: Any) -> Kernels:
        kernels: Kernels = choose(*args, **kwargs)
        backends.update(step.__module__.split(".")[2] for step in (kernels.moments, kernels.solve))
        return kernels

    try:
        for module in modules:
            module.choose_kernels = choose_and_record
        yield
    finally:
        for module in modules:
            module.choose_kernels = choose
