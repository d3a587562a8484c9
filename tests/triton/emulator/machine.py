"""Run a kernel's PTX: the programs of a grid one after the other, and the warps of each in random order.

A warp runs as far as it can, to the next barrier or the end. Each instruction is translated once, to a function of a
warp. Registers are arrays of 32 lanes, of unsigned integers or, for predicates, booleans.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.triton.emulator.memory import Agents, Memory
from tests.triton.emulator.operations import (
    DTYPES,
    LANES,
    encode_argument,
    find_operation,
    find_product,
    parse_constant,
)
from tests.triton.emulator.ptx import Instruction, Program

_ADDRESS = re.compile(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+))?\s*\]")
# The PTX name of the start of shared memory.
_SHARED = "global_smem"


class Warp:
    """Registers of a warp, its next instruction, the kernel's arguments, and the memory that it sees by name."""

    def __init__(self, registers: dict[str, np.ndarray], arguments: dict[str, Any], memory: dict[str, Memory]) -> None:
        self.registers = registers
        self.arguments = arguments
        self.memory = memory
        # Asynchronous copies in groups, of which the last is still open.
        self.copies: list[list[Callable[[], None]]] = [[]]
        self.next = 0
        self.is_done = False


# Returns whether the warp stops.
Step = Callable[[Warp], bool | None]
Read = Callable[[Warp], np.ndarray]


class Machine:
    """A kernel that can be run.

    Args:
        program: its PTX.
        shared: its bytes of shared memory.
    """

    def __init__(self, program: Program, shared: int) -> None:
        self._program = program
        self._shared = shared
        self._steps = [_translate(instruction, program) for instruction in program.instructions]

    def run(
        self, grid: Sequence[int], arguments: Sequence[Any], memory: GlobalMemory, faults: Counter[str], seed: int = 0
    ) -> int:
        """Run all programs of a grid and return the number of instructions, counted per warp."""
        order = random.Random(seed)
        names = dict(zip(self._program.parameters, [*arguments, 0, 0], strict=True))
        positions = list(itertools.product(*map(range, grid)))
        order.shuffle(positions)
        count = 0
        with np.errstate(all="ignore"):
            for memory.programs.current, position in enumerate(positions):
                count += self._run_program(position, grid, names, memory, faults, order)
        return count

    def _run_program(
        self,
        position: Sequence[int],
        grid: Sequence[int],
        arguments: dict[str, Any],
        memory: GlobalMemory,
        faults: Counter[str],
        order: random.Random,
    ) -> int:
        spaces = {"global": memory, "shared": Memory(self._shared, faults, {"warp": memory.warps})}
        axes = {f"%{name}.{axis}": np.full(32, value, np.uint32)
                for name, values in (("ctaid", position), ("nctaid", grid))
                for axis, value in itertools.zip_longest("xyz", values, fillvalue=name == "nctaid")}  # fmt: skip
        warps = [
            Warp(axes | {"%tid.x": (LANES + first).astype(np.uint32)}, arguments, spaces)
            for first in range(0, self._program.threads, 32)
        ]
        count = 0
        while not all(warp.is_done for warp in warps):
            memory.warps.interval += 1
            for index in order.sample(range(len(warps)), len(warps)):
                memory.warps.current = index
                count += self._run_warp(warps[index])
            assert len({warp.is_done for warp in warps}) == 1, "expected all warps at a barrier (got some that ended)"
        return count

    def _run_warp(self, warp: Warp) -> int:
        """Run a warp to the next barrier or the end, and return the number of instructions."""
        for count in itertools.count(1):
            step = self._steps[warp.next]
            warp.next += 1
            if step(warp):
                return count
        raise AssertionError


class GlobalMemory(Memory):
    """Memory that all warps of all programs share."""

    def __init__(self, size: int, faults: Counter[str]) -> None:
        self.warps, self.programs = Agents(), Agents()
        super().__init__(size, faults, {"warp": self.warps, "program": self.programs})


def _translate(instruction: Instruction, program: Program) -> Step:
    translate = _STEPS.get(instruction.name[0])
    if translate is not None:
        return translate(instruction, program)
    types, function = find_operation(instruction.name)
    reads = [_reader(text, type_) for text, type_ in zip(instruction.operands[1:], types, strict=True)]
    write = _writer(instruction, instruction.operands[0])
    if len(reads) == 2:
        first, second = reads
        return lambda warp: write(warp, function(first(warp), second(warp)))
    return lambda warp: write(warp, function(*[read(warp) for read in reads]))


def _reader(text: str, type_: str) -> Read:
    """Return a function that reads a register or a constant as a type."""
    constant = np.zeros(32, DTYPES[type_]) if text == _SHARED else parse_constant(text, type_)
    if constant is not None:
        return lambda warp: constant
    if type_ == "pred":
        return lambda warp: warp.registers[text]
    dtype = np.dtype(DTYPES[type_])
    return lambda warp: warp.registers[text].view(dtype)


def _writer(instruction: Instruction, register: str) -> Callable[[Warp, np.ndarray], None]:
    """Return a function that writes a register in the lanes where the instruction's guard is true."""
    is_active = _active_lanes(instruction)

    def write(warp: Warp, values: np.ndarray) -> None:
        warp.registers[register] = values.view(f"u{values.itemsize}") if values.dtype.kind in "if" else values

    def write_active(warp: Warp, values: np.ndarray) -> None:
        old = warp.registers.get(register)
        write(warp, values)
        if old is not None:
            warp.registers[register] = np.where(is_active(warp), warp.registers[register], old)

    return write if instruction.guard is None else write_active


def _active_lanes(instruction: Instruction) -> Read:
    guard = instruction.guard
    if guard is None:
        everywhere = np.ones(32, bool)
        return lambda warp: everywhere
    return (lambda warp: ~warp.registers[guard]) if instruction.is_negated else (lambda warp: warp.registers[guard])


def _is_taken(instruction: Instruction) -> Callable[[Warp], bool]:
    """Return whether a branch is taken, which all lanes must agree on."""
    is_active = _active_lanes(instruction)

    def decide(warp: Warp) -> bool:
        lanes = is_active(warp)
        assert lanes.all() == lanes.any(), f"lanes diverge: {instruction.text}"
        return bool(lanes.all())

    return decide


def _branch(instruction: Instruction, program: Program) -> Step:
    target, is_taken = program.labels[instruction.operands[0]], _is_taken(instruction)

    def step(warp: Warp) -> None:
        if is_taken(warp):
            warp.next = target

    return step


def _return(instruction: Instruction, program: Program) -> Step:
    is_taken = _is_taken(instruction)

    def step(warp: Warp) -> bool:
        warp.is_done = is_taken(warp)
        return warp.is_done

    return step


def _barrier(instruction: Instruction, program: Program) -> Step:
    # The lanes of a warp run in step anyway.
    is_for_program = instruction.name[1] != "warp"
    return lambda warp: is_for_program


def _move(instruction: Instruction, program: Program) -> Step:
    target, source = instruction.operands
    type_ = instruction.name[1]
    if target.startswith("{"):
        return _unpack(instruction, _registers(target), source, type_)
    if source.startswith("{"):
        return _pack(instruction, target, _registers(source), type_)
    read, write = _reader(source, type_), _writer(instruction, target)
    return lambda warp: write(warp, read(warp))


def _unpack(instruction: Instruction, targets: list[str], source: str, type_: str) -> Step:
    read, part = _reader(source, type_), f"u{int(type_[1:]) // 8 // len(targets)}"
    writes = [(i, _writer(instruction, target)) for i, target in enumerate(targets) if target != "_"]

    def step(warp: Warp) -> None:
        parts = read(warp).view(part).reshape(32, len(targets))
        for i, write in writes:
            write(warp, parts[:, i].copy())

    return step


def _pack(instruction: Instruction, target: str, sources: list[str], type_: str) -> Step:
    reads = [_reader(source, f"b{int(type_[1:]) // len(sources)}") for source in sources]
    write = _writer(instruction, target)
    return lambda warp: write(warp, np.stack([read(warp) for read in reads], 1).view(DTYPES[type_])[:, 0])


def _load(instruction: Instruction, program: Program) -> Step:
    space, (target, source) = instruction.name[1], instruction.operands
    if space == "param":
        name, write = source.strip("[] "), _writer(instruction, target)
        return lambda warp: write(warp, encode_argument(warp.arguments[name], program.parameters[name], target))
    targets = _registers(target)
    writes = [_writer(instruction, register) for register in targets]
    address, is_active, size = _address(source), _active_lanes(instruction), _size(instruction)

    def step(warp: Warp) -> None:
        lanes = is_active(warp)
        # NaN in registers that the guard leaves undefined.
        values = np.full((len(targets), 32), 2 ** (8 * size) - 1, f"u{size}")
        if lanes.any():
            values[:, lanes] = warp.memory[space].load(address(warp)[lanes], size, len(targets), instruction.text)
        for write, value in zip(writes, values, strict=True):
            write(warp, value)

    return step


def _store(instruction: Instruction, program: Program) -> Step:
    space, (target, source) = instruction.name[1], instruction.operands
    reads = [_reader(register, f"b{8 * _size(instruction)}") for register in _registers(source)]
    address, is_active = _address(target), _active_lanes(instruction)

    def step(warp: Warp) -> None:
        lanes = is_active(warp)
        if lanes.any():
            values = np.stack([read(warp) for read in reads])
            warp.memory[space].store(address(warp)[lanes], values[:, lanes], instruction.text)

    return step


def _copy(instruction: Instruction, program: Program) -> Step:
    """Copy to shared memory, as late as a copy may take effect: when the warp waits for it."""
    kind = instruction.name[2]
    if kind == "commit_group":
        return lambda warp: warp.copies.append([])
    if kind in ("wait_group", "wait_all"):
        pending = int(instruction.operands[0], 0) if kind == "wait_group" else 0
        return lambda warp: _finish_copies(warp, pending)
    target, source, size, *rest = instruction.operands
    to, from_, is_active = _address(target), _address(source), _active_lanes(instruction)
    count = int(size, 0) // 4
    read_size = _reader(rest[0] if rest else size, "b32")

    def step(warp: Warp) -> None:
        lanes = is_active(warp)
        is_read = lanes & (read_size(warp) > 0)
        values = np.zeros((count, 32), "u4")
        if is_read.any():
            values[:, is_read] = warp.memory["global"].load(from_(warp)[is_read], 4, count, instruction.text)
        if lanes.any():
            at = to(warp)[lanes]
            warp.copies[-1].append(lambda: warp.memory["shared"].store(at, values[:, lanes], instruction.text))

    return step


def _finish_copies(warp: Warp, pending: int) -> None:
    """Finish all copies but those of the last groups."""
    *closed, last = warp.copies
    first_pending = max(0, len(closed) - pending)
    for copy in itertools.chain.from_iterable(closed[:first_pending]):
        copy()
    warp.copies = [*closed[first_pending:], last]


def _load_matrices(instruction: Instruction, program: Program) -> Step:
    """Load 8×8 matrices of 16 bits, each of whose rows is at the address of one lane."""
    target, source = instruction.operands
    writes = [_writer(instruction, register) for register in _registers(target)]
    address, is_transposed = _address(source), "trans" in instruction.name

    def step(warp: Warp) -> None:
        starts = address(warp)
        for i, write in enumerate(writes):
            if is_transposed:
                at = [starts[8 * i + 2 * (LANES % 4) + half] + 2 * (LANES // 4) for half in (0, 1)]
                halves = warp.memory["shared"].load(np.concatenate(at), 2, 1, instruction.text).reshape(2, 32)
                write(warp, halves[0] | halves[1].astype("u4") << 16)
            else:
                at = starts[8 * i + LANES // 4] + 4 * (LANES % 4)
                write(warp, warp.memory["shared"].load(at, 4, 1, instruction.text)[0])

    return step


def _multiply(instruction: Instruction, program: Program) -> Step:
    multiply = find_product(instruction.name)
    targets, *sources = (_registers(operand) for operand in instruction.operands)
    writes = [_writer(instruction, register) for register in targets]
    reads = [[_reader(register, "b32") for register in registers] for registers in sources]

    def step(warp: Warp) -> None:
        result = multiply(*[np.stack([read(warp) for read in operand]) for operand in reads])
        for write, value in zip(writes, result, strict=True):
            write(warp, value)

    return step


def _registers(operand: str) -> list[str]:
    return [register.strip() for register in operand.strip("{} ").split(",")]


def _size(instruction: Instruction) -> int:
    return int(instruction.name[-1][1:]) // 8


def _address(operand: str) -> Read:
    base, offset = _ADDRESS.match(operand).groups(default="0")
    read = _reader(base, "b64" if base.startswith("%rd") else "b32")
    return lambda warp: read(warp).astype(np.int64) + int(offset)


_STEPS: dict[str, Callable[[Instruction, Program], Step]] = {
    "bra": _branch,
    "ret": _return,
    "bar": _barrier,
    "mov": _move,
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "ldmatrix": _load_matrices,
    "mma": _multiply,
}
