"""Count the operations of a training step on the meta device, without a GPU.

An operation is a launch: one of torch's operations, or a Triton kernel. Views and allocations are free. Its bytes are
those of the memory that it reads and writes, each counted once; its FLOPs are those of matrix products and
convolutions; of Triton kernels those that run, see :mod:`benchmarks.roofline.products`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.roofline.products import count_flops
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops.launches import Launch, record_launches

# Operations that move no memory, besides views.
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "is_same_size"}
# Operations that write their first argument without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_"}

_BLOCK = 64
# Most matrices that torch's solves merge into one.
_MERGED = 4


class Operation(NamedTuple):
    """A launch: its name, the bytes it moves, its FLOPs, and whether it is a Triton kernel.

    ``programs`` is the number of parts that run on one multiprocessor each. It is known of Triton kernels; products of
    small square matrices are assumed to have one per block of 64×64. Others have 0: they are assumed to fill the GPU.
    """

    name: str
    bytes: int
    flops: int
    triton: bool = False
    programs: int = 0


class Work(NamedTuple):
    """The operations of a training step."""

    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.forward + self.backward

    @property
    def launches(self) -> int:
        return len(self.operations)

    @property
    def triton_launches(self) -> int:
        return sum(operation.triton for operation in self.operations)

    @property
    def bytes(self) -> int:
        return sum(operation.bytes for operation in self.operations)

    @property
    def flops(self) -> int:
        return sum(operation.flops for operation in self.operations)


def count_operations(run: Callable[[], Any]) -> tuple[Any, tuple[Operation, ...]]:
    """Return the result of a function, and the operations that it runs.

    Example::

        >>> x = torch.empty(64, 32, device="meta")
        >>> y, operations = count_operations(lambda: (x.t() @ x).relu_())
        >>> [operation[:3] for operation in operations]
        [('mm', 12288, 131072), ('relu_', 8192, 0)]
    """
    result, record = _record(run)
    return result, _operations(record)


def layer_work(layer: nn.Module, shape: tuple[int, ...], kernels: str = "torch") -> Work:
    """Count a training step of a layer on a float32 input of this shape, with the gradients of x and all parameters."""
    forward, backward = _step(layer, shape, kernels)
    return Work(_operations(forward), _operations(backward))


def step_work(run: Callable[[], Tensor]) -> Work:
    """Count a function that returns a loss, and the backward of the loss."""
    loss, forward = count_operations(run)
    return Work(forward, count_operations(loss.backward)[1])


def count_passes(work: Work, shape: tuple[int, ...]) -> float:
    """Return the bytes moved as a multiple of those of a float32 input."""
    return work.bytes / (4 * math.prod(shape))


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of memory that a tensor occupies; expanded dimensions count once.

    Example::

        >>> nbytes(torch.empty(3, 4)), nbytes(torch.empty(3, 1).expand(3, 4))
        (48, 12)
    """
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0]
    return math.prod(sizes) * tensor.element_size()


class _Mode(TorchDispatchMode):
    """Record torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if not func.is_view and name not in _FREE:
            read = _tensors((args[1:] if name in _OVERWRITE else args, _without_out(func, kwargs)))
            moved = _sum_bytes(read) + _sum_bytes(_tensors(result))
            products = flop_registry.get(func._overloadpacket)
            flops = 0 if products is None else products(*args, **kwargs, out_val=result)
            programs = _small_blocks([*read, *_tensors(result)]) if flops else 0
            self.operations.append(Operation(name, moved, int(flops), programs=programs))
        return result


class _Record(NamedTuple):
    """torch's operations, and launches of Triton kernels."""

    operations: list[Operation]
    launches: list[Launch]


def _record(run: Callable[[], Any]) -> tuple[Any, _Record]:
    # The default device is meta, too, for tensors that are created without one.
    with record_launches() as launches, torch.device("meta"), _Mode() as mode:
        result = run()
    return result, _Record(mode.operations, launches)


def _step(layer: nn.Module, shape: tuple[int, ...], kernels: str) -> tuple[_Record, _Record]:
    """Record forward and backward with the kernels of a mode."""
    layer = layer.to("meta").train()
    x = torch.empty(shape, device="meta", requires_grad=True)
    leaves = [x, *[parameter for parameter in layer.parameters() if parameter.requires_grad]]
    with use_kernels(kernels):
        y, forward = _record(lambda: layer(x))
        grad = torch.empty_like(y)
        _, backward = _record(lambda: torch.autograd.grad(y, leaves, grad, allow_unused=True))
    return forward, backward


def _operations(record: _Record) -> tuple[Operation, ...]:
    return (*record.operations, *[_operation(launch) for launch in record.launches])


def _operation(launch: Launch) -> Operation:
    return Operation(launch.kernel, _sum_bytes(launch.tensors), count_flops(launch), True, launch.programs)


def _small_blocks(tensors: list[Tensor]) -> int:
    """Return the number of blocks of a product of square matrices, single or a few merged; 0 for other products."""
    sizes = {size for tensor in tensors if tensor.ndim > 1 for size in tensor.shape[-2:]}
    size = min(sizes, default=0)
    if size == 0 or any(other % size or other > _MERGED * size for other in sizes):
        return 0
    return max(tensor.numel() for tensor in tensors) // size**2 * math.ceil(size / _BLOCK) ** 2


def _without_out(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without those that are only written, which are also the result."""
    written = {argument.name for argument in func._schema.arguments if argument.is_out}
    return {name: value for name, value in kwargs.items() if name not in written}


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _sum_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that tensors occupy; two views of the same memory, such as a transpose, count once."""
    memory = {}
    for tensor in tensors:
        extent = sorted(zip(tensor.shape, tensor.stride(), strict=True))
        memory[tensor.untyped_storage()._cdata, tensor.storage_offset(), str(extent)] = nbytes(tensor)
    return sum(memory.values())
