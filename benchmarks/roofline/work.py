"""What a training step asks of a GPU, counted without one: nothing is computed on the meta device.

An operation is what is launched: one of torch's, or a kernel of Triton's. Views and allocations are free. Its bytes are
those of the memory it reads and of the memory it writes, each once, however often it goes over them; its FLOPs are
those of matrix products and convolutions.
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

from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops.launches import Launch, record_launches

# Besides views: memory that is only asked for, and what looks at sizes alone.
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "is_same_size"}
# They write their first argument without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_"}


_BLOCK = 64
# As many matrices are joined to one in torch's solves.
_SIDE_BY_SIDE = 4
# In the names of Triton's kernels that solve for a matrix in one program.
_SOLVES = ("solve", "pull_back")


class Operation(NamedTuple):
    """A launch: its name, the bytes it moves, its FLOPs, and whether it is one of Triton's.

    ``programs`` is in how many parts it runs, each on one multiprocessor: known of Triton's, and taken to be the blocks
    of 64×64 in products of small square matrices. Of others it is 0: they are taken to fill the card.
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


def operations(run: Callable[[], Any]) -> tuple[Any, tuple[Operation, ...]]:
    """What a function returns, and the operations it runs.

    Example::

        >>> x = torch.empty(64, 32, device="meta")
        >>> y, found = operations(lambda: (x.t() @ x).relu_())
        >>> [operation[:3] for operation in found]
        [('mm', 12288, 131072), ('relu_', 8192, 0)]
    """
    result, (found, launched) = _counted(run)
    return result, (*found, *[_launch(launch) for launch in launched])


def layer_work(layer: nn.Module, shape: tuple[int, ...], kernels: str = "torch") -> Work:
    """A training step of a layer on an input of this shape, float32: y, and the gradients of x and all parameters.

    How many products a kernel of Triton's has is not seen from outside: they are those that torch has in the same step.
    Products of small square matrices are those of the solves. Of the others, a kernel has one for one or two tensors
    of x's size, and two for three.
    """
    forward, backward = _step(layer, shape, kernels)
    if kernels == "torch":
        return Work(tuple(forward.found), tuple(backward.found))
    both = zip((forward, backward), _step(layer, shape, "torch"), strict=True)
    return Work(*[_with_products(*counted, by_torch.found, math.prod(shape)) for counted, by_torch in both])


def step_work(run: Callable[[], Tensor]) -> Work:
    """A training step of anything: a function that gives a loss, and its gradients."""
    loss, forward = operations(run)
    return Work(forward, operations(loss.backward)[1])


def passes(work: Work, shape: tuple[int, ...]) -> float:
    """The bytes moved, as multiples of those of a float32 input."""
    return work.bytes / (4 * math.prod(shape))


def nbytes(tensor: Tensor) -> int:
    """Bytes of the memory that a tensor's elements are in: dimensions it was expanded by are there once.

    Example::

        >>> nbytes(torch.empty(3, 4)), nbytes(torch.empty(3, 1).expand(3, 4))
        (48, 12)
    """
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0]
    return math.prod(sizes) * tensor.element_size()


class _Mode(TorchDispatchMode):
    """Writes down torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if not func.is_view and name not in _FREE:
            read = _tensors((args[1:] if name in _OVERWRITE else args, _without_out(func, kwargs)))
            moved = _total(read) + _total(_tensors(result))
            products = flop_registry.get(func._overloadpacket)
            flops = 0 if products is None else products(*args, **kwargs, out_val=result)
            programs = _small_blocks([*read, *_tensors(result)]) if flops else 0
            self.found.append(Operation(name, moved, int(flops), programs=programs))
        return result


class _Counted(NamedTuple):
    """Operations of torch's, and launches of Triton's."""

    found: list[Operation]
    launched: list[Launch]


def _counted(run: Callable[[], Any]) -> tuple[Any, _Counted]:
    # Tensors that are made without a device are made there too.
    with record_launches() as launched, torch.device("meta"), _Mode() as mode:
        result = run()
    return result, _Counted(mode.found, launched)


def _step(layer: nn.Module, shape: tuple[int, ...], kernels: str) -> tuple[_Counted, _Counted]:
    """Forward and backward, with the kernels asked for."""
    layer = layer.to("meta").train()
    x = torch.empty(shape, device="meta", requires_grad=True)
    leaves = [x, *[parameter for parameter in layer.parameters() if parameter.requires_grad]]
    with use_kernels(kernels):
        y, forward = _counted(lambda: layer(x))
        grad = torch.empty_like(y)
        _, backward = _counted(lambda: torch.autograd.grad(y, leaves, grad, allow_unused=True))
    return forward, backward


def _with_products(
    found: list[Operation], launched: list[Launch], by_torch: list[Operation], values: int
) -> tuple[Operation, ...]:
    """Operations with the FLOPs of Triton's launches filled in."""
    large = [(sum(tensor.numel() == values for tensor in launch.tensors) + 1) // 2 for launch in launched]
    launches = [_launch(launch) for launch in launched]
    solves = [int(any(word in launch.kernel for word in _SOLVES)) for launch in launched]
    shares = {False: large, True: solves if any(solves) else large}
    for small, weights in shares.items():
        rest = _flops(by_torch, small) - _flops(found, small)
        for i, weight in enumerate(weights):
            more = max(0, rest) * weight // max(1, sum(weights))
            launches[i] = launches[i]._replace(flops=launches[i].flops + more)
    return (*found, *launches)


def _flops(found: Iterable[Operation], small: bool) -> int:
    return sum(operation.flops for operation in found if (operation.programs > 0) == small)


def _launch(launch: Launch) -> Operation:
    return Operation(launch.kernel, _total(launch.tensors), 0, True, launch.programs)


def _small_blocks(tensors: list[Tensor]) -> int:
    """How many blocks products of square matrices have, alone or a few side by side; 0 of other products."""
    sizes = {size for tensor in tensors if tensor.ndim > 1 for size in tensor.shape[-2:]}
    size = min(sizes, default=0)
    if size == 0 or any(other % size or other > _SIDE_BY_SIDE * size for other in sizes):
        return 0
    return max(tensor.numel() for tensor in tensors) // size**2 * math.ceil(size / _BLOCK) ** 2


def _without_out(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments without those that are only written, which are what is returned."""
    written = {argument.name for argument in func._schema.arguments if argument.is_out}
    return {name: value for name, value in kwargs.items() if name not in written}


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _total(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory they are in: two views of the same, such as a matrix and its transpose, count once."""
    memory = {}
    for tensor in tensors:
        extent = sorted(zip(tensor.shape, tensor.stride(), strict=True))
        memory[tensor.untyped_storage()._cdata, tensor.storage_offset(), str(extent)] = nbytes(tensor)
    return sum(memory.values())
