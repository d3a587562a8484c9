"""Parse the PTX that Triton writes for a kernel."""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r"(\$\w+):(.*)")
_GUARD = re.compile(r"@(!?)(%p\d+)\s+(.*)")
# Commas within braces or brackets do not separate operands.
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+")


class Instruction(NamedTuple):
    """An instruction: its dotted name, its operands, and the predicate that guards it, if any."""

    name: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    is_negated: bool
    text: str


class Program(NamedTuple):
    """A kernel: types of its parameters by name, threads per block, instructions, and the indices of its labels."""

    parameters: dict[str, str]
    threads: int
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def parse(ptx: str) -> Program:
    """Parse the only kernel of a module."""
    head, body = ptx[ptx.index(".visible .entry") :].split("\n{", 1)
    parameters = {name: kind for kind, name in re.findall(r"\.param \.(\w+)[^,\n]*?(\w+_param_\d+)", head)}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in body.split("\n}", 1)[0].splitlines():
        code = line.split("//")[0].strip()
        if label := _LABEL.match(code):
            labels[label[1]] = len(instructions)
            code = label[2].strip()
        if not code.startswith("."):  # Directives.
            instructions += [parse_instruction(part.strip()) for part in code.split(";") if part.strip()]
    return Program(parameters, int(re.search(r"\.reqntid (\d+)", head)[1]), tuple(instructions), labels)


def parse_instruction(text: str) -> Instruction:
    """Parse an instruction without its semicolon.

    Example::

        >>> parse_instruction("@!%p1 st.global.v2.b32 [ %rd1 + 8 ], { %r1, %r2 }").operands
        ('[ %rd1 + 8 ]', '{ %r1, %r2 }')
    """
    guard = _GUARD.match(text)
    name, _, rest = (guard[3] if guard else text).replace("\t", " ").partition(" ")
    operands = tuple(operand.strip() for operand in _OPERAND.findall(rest))
    return Instruction(tuple(name.split(".")), operands, guard[2] if guard else None, bool(guard and guard[1]), text)
