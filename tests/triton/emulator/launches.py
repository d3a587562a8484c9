"""Run launches of Triton kernels on CPU tensors, by emulating the PTX that Triton compiles for a GPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.triton.emulator.machine import GlobalMemory, Machine
from tests.triton.emulator.memory import UNIT
from tests.triton.emulator.ptx import parse
from tools import gpu_check

CARD = "sm_80"
# Distance of tensors in memory, a multiple of every alignment.
_ALIGNMENT = 256

Edit = Callable[[str, str], str]


class Emulation(NamedTuple):
    """Counts of the instructions that all warps ran, by kernel, and the faults, by kernel and instruction."""

    instructions: Counter[str]
    faults: Counter[str]


@contextlib.contextmanager
def emulate(edit: Edit | None = None) -> Iterator[Emulation]:
    """Emulate all launches. Tensors that a launch finds uninitialised are those that torch filled with NaN.

    ``edit``, if given, receives the name and the PTX of each kernel, and returns the PTX to run.
    """
    emulation = Emulation(Counter(), Counter())
    machines: dict[str, Machine] = {} if edit else _machines

    def run(kernel: Any, grid: tuple[int, ...], like: Tensor, *positional: Any, **named: Any) -> None:
        launch = gpu_check.bind("", 0, like, kernel, positional, named)
        key = gpu_check.identify(launch)
        if key not in machines:
            assembly, shared = gpu_check.compile_assembly(launch, gpu_check.CARDS[CARD].target)
            ptx = assembly["ptx"]
            machines[key] = Machine(parse(edit(launch.name, ptx) if edit else ptx), shared)
        _run(machines[key], launch, grid, emulation)

    is_deterministic = torch.are_deterministic_algorithms_enabled()
    # Fills fresh tensors with NaN.
    torch.use_deterministic_algorithms(True)
    try:
        with gpu_check.replace_launch(run, CARD):
            yield emulation
    finally:
        torch.use_deterministic_algorithms(is_deterministic)


_machines: dict[str, Machine] = {}


def _run(machine: Machine, launch: gpu_check.Launch, grid: tuple[int, ...], emulation: Emulation) -> None:
    """Copy the storages of all tensors into one memory, run the launch, and copy them back."""
    values = [launch.arguments[name] for name, type_ in gpu_check.signature(launch).items() if type_ != "constexpr"]
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in values if isinstance(tensor, Tensor)}
    starts, end = {}, _ALIGNMENT
    for key, tensor in storages.items():
        starts[key] = end
        end += -(-tensor.untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
    faults: Counter[str] = Counter()
    memory = GlobalMemory(end, faults)
    for key, tensor in storages.items():
        memory.write_bytes(starts[key], _bytes(tensor), _is_initialized(tensor))
    arguments: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            value = starts[value.untyped_storage().data_ptr()] + value.storage_offset() * value.element_size()
        arguments += [part for part in value if part != 1] if isinstance(value, tuple) else [value]
    emulation.instructions[launch.name] += machine.run(grid, arguments, memory, faults)
    emulation.faults.update({f"{launch.name} {fault}": count for fault, count in faults.items()})
    for key, tensor in storages.items():
        contents = _bytes(tensor)
        contents[:] = memory.read_bytes(starts[key], len(contents))


def _storage(tensor: Tensor) -> Tensor:
    """Return all of a tensor's storage, as a vector."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _bytes(tensor: Tensor) -> np.ndarray:
    return _storage(tensor).view(torch.uint8).numpy()


def _is_initialized(tensor: Tensor) -> np.ndarray:
    """Return which units of a tensor's storage hold values, of which none is NaN."""
    return np.repeat(~_storage(tensor).isnan().numpy(), tensor.element_size() // UNIT)
