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

from whitenorm.gpu.chosen import chosen
from whitenorm.kernels.launches import Launch, counted

# Besides views: memory that is only asked for, and what looks at sizes alone.
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "is_same_size"}
# They write their first argument without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_"}


# In the names of Triton's kernels that solve for a matrix in one program.
_SOLVES = ("solve", "pull_back")


class Operation(NamedTuple):
    """A launch: its name, the bytes it moves, its FLOPs, and whether it is one of Triton's.

    Of a solve it is known how many ``matrices`` there are, each of which is one multiprocessor's work; 0 where the
    whole card works.
    """

    name: str
    bytes: int
    flops: int
    triton: bool = False
    matrices: int = 0


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
    result, found, launched = _counted(run)
    return result, (*found, *[_launch(launch) for launch in launched])


def layer_work(layer: nn.Module, shape: tuple[int, ...], kernels: str = "torch", features: int = 0) -> Work:
    """A training step of a layer on an input of this shape, float32: y, and the gradients of x and all parameters.

    How many products a kernel of Triton's has is not seen from outside. Those that go over x have one of 2·K FLOPs a
    value for two tensors of its size, or two for three; K is ``features``. What torch has beyond these in the same step
    is left to those that solve.
    """
    torch_work = _step(layer, shape, "torch")
    if kernels == "torch":
        return Work(*[(*found, *map(_launch, launched)) for found, launched in torch_work])
    directions = zip(_step(layer, shape, kernels), torch_work, strict=True)
    return Work(*[_with_products(*own, theirs[0], math.prod(shape), features) for own, theirs in directions])


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
            self.found.append(Operation(name, moved, int(flops)))
        return result


def _counted(run: Callable[[], Any]) -> tuple[Any, list[Operation], list[Launch]]:
    # Tensors that are made without a device are made there too.
    with counted() as launched, torch.device("meta"), _Mode() as mode:
        result = run()
    return result, mode.found, launched


def _step(layer: nn.Module, shape: tuple[int, ...], kernels: str) -> list[tuple[list[Operation], list[Launch]]]:
    """Forward and backward, with the kernels asked for."""
    layer = layer.to("meta").train()
    x = torch.empty(shape, device="meta", requires_grad=True)
    leaves = [x, *[parameter for parameter in layer.parameters() if parameter.requires_grad]]
    with chosen(kernels):
        y, *forward = _counted(lambda: layer(x))
        grad = torch.empty_like(y)
        _, *backward = _counted(lambda: torch.autograd.grad(y, leaves, grad, allow_unused=True))
    return [tuple(forward), tuple(backward)]  # type: ignore[list-item]


def _with_products(
    found: list[Operation], launched: list[Launch], by_torch: list[Operation], values: int, features: int
) -> tuple[Operation, ...]:
    """Operations with the FLOPs of Triton's launches filled in."""
    launches = [_launch(launch, values, features) for launch in launched]
    rest = sum(operation.flops for operation in by_torch) - sum(operation.flops for operation in (*found, *launches))
    solves = [i for i, launch in enumerate(launches) if launch.matrices] or list(range(len(launches)))
    for i in solves:
        launches[i] = launches[i]._replace(flops=launches[i].flops + max(0, rest) // len(solves))
    return (*found, *launches)


def _launch(launch: Launch, values: int = 0, features: int = 0) -> Operation:
    large = sum(tensor.numel() == values for tensor in launch.tensors)
    flops = (large + 1) // 2 * 2 * values * features
    # A mean (B, G, K) comes with each matrix.
    means = [tensor.numel() // features for tensor in launch.tensors if tensor.ndim == 3 and features]
    solves = large == 0 and any(word in launch.kernel for word in _SOLVES)
    return Operation(launch.kernel, _total(launch.tensors), flops, True, max(means, default=1) if solves else 0)


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
