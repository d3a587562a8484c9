"""Compile every Triton kernel for GPUs that need not be present, and report the registers and memory each needs.

python -m tools.gpu_check [--targets sm_80 gfx942] [--features 64] [--kernels apply] [--write]

It fails if a kernel needs more shared memory than a block of the GPU may have, or if one of the kernels that pass over
x spills registers.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas
from triton.compiler import ASTSource

import whitenorm
from whitenorm.ops.triton import (
    apply,
    input_gradient,
    map_gradients,
    mixing_backward,
    moments,
    per_sample,
    solve,
    solve_backward,
    tiling,
)
from whitenorm.ops.triton.tiling import COMPILE_OPTIONS
from whitenorm.ops.types import STATISTICS

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "gpu_check.md"
MODULES = (moments, solve, apply, map_gradients, solve_backward, mixing_backward, input_gradient, per_sample)
FEATURES = (16, 32, 64)
DTYPES = (torch.float32, torch.bfloat16)
PASS_OVER_X = ("_partial_moments", "_apply", "_map_gradients", "_input_gradient")


# Layers that whiten K features together, and their inputs.
LAYERS = {
    "batch": (lambda size: whitenorm.IterNorm(4 * size, size), (64, 4, 32, 32)),
    "group": (lambda size: whitenorm.GroupWhitening(size, 4 * size), (64, 4, 32, 32)),
    "switchable": (lambda size: whitenorm.SwitchableWhitening(4 * size, size, STATISTICS), (64, 4, 32, 32)),
    "layer": (lambda size: whitenorm.LayerWhitening(size * size, size), (8192, None)),
}


class Card(NamedTuple):
    """A target, and its shared memory for one block in bytes."""

    target: GPUTarget
    shared: int


# Triton does not support older GPUs than sm_80, and neither does whitenorm.ops.dispatch.
CARDS = {
    "sm_80": Card(GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_89": Card(GPUTarget("cuda", 89, 32), 99 * 1024),
    "sm_90": Card(GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": Card(GPUTarget("cuda", 100, 32), 227 * 1024),
    "sm_120": Card(GPUTarget("cuda", 120, 32), 99 * 1024),
    "gfx90a": Card(GPUTarget("hip", "gfx90a", 64), 64 * 1024),
    "gfx942": Card(GPUTarget("hip", "gfx942", 64), 64 * 1024),
    "gfx1100": Card(GPUTarget("hip", "gfx1100", 32), 64 * 1024),
}


class Launch(NamedTuple):
    """A kernel as a layer launches it."""

    layer: str
    features: int
    dtype: torch.dtype
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__


class Row(NamedTuple):
    """The resources that a kernel needs on a card; ``problem`` says why it cannot run, or run well."""

    launch: Launch
    card: str
    shared: int = 0
    registers: int = 0
    spilled: int = 0
    seconds: float = 0.0
    problem: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(CARDS), choices=list(CARDS))
    parser.add_argument("--features", nargs="+", type=int, default=list(FEATURES), help="K")
    parser.add_argument("--kernels", nargs="+", default=[], help="parts of kernel names (default: all kernels)")
    parser.add_argument("--write", action="store_true", help=f"write the table to benchmarks/results/{RESULTS.name}")
    options = parser.parse_args()
    rows = []
    # An empty cache, so that everything is compiled, and timed, anew.
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for card in options.targets:
            for launch in collect_launches(card, tuple(options.features)):
                if not options.kernels or any(name in launch.name for name in options.kernels):
                    rows.append(compile_launch(launch, card))
                    print(format_line(rows[-1]), flush=True)
    if options.write:
        RESULTS.write_text(format_table(rows))
    return int(any(row.problem for row in rows))


def collect_launches(card: str, features: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = DTYPES) -> list[Launch]:
    """Return every kernel of a training step of each kind of layer on a card, without duplicates."""
    launches: dict[str, Launch] = {}
    for size in features:
        for dtype in dtypes:
            for layer in LAYERS:
                for launch in record_step(card, layer, size, dtype):
                    launches.setdefault(identify(launch), launch)
    return list(launches.values())


def record_step(card: str, layer: str, size: int, dtype: torch.dtype) -> list[Launch]:
    """Return the launches of a training step on a card, recorded on the meta device."""
    launches: list[Launch] = []
    make, (n, multiple, *positions) = LAYERS[layer]
    channels = size * (size if multiple is None else multiple)
    x = torch.empty(n, channels, *positions, dtype=dtype, device="meta", requires_grad=True)

    def record(kernel: Any, grid: tuple[int, ...], like: Tensor, *positional: Any, **named: Any) -> None:
        launches.append(bind(layer, size, like, kernel, positional, named))

    with replace_launch(record, card):
        y = make(size).to("meta")(x)
        y.backward(torch.empty_like(y))
    return launches


def bind(
    layer: str, size: int, like: Tensor, kernel: Any, positional: tuple[Any, ...], named: dict[str, Any]
) -> Launch:
    """Return a launch with its arguments by name, apart from the options of its compilation."""
    options = {name: named[name] for name in ("num_warps", "num_stages") if name in named}
    arguments = dict(zip(kernel.arg_names, positional, strict=False)) | named
    return Launch(layer, size, like.dtype, kernel, arguments, options)


def identify(launch: Launch) -> str:
    """Return a key that two launches share if they run the same compiled code."""
    return repr((launch.name, signature(launch), specializations(launch), launch.options))


@contextlib.contextmanager
def replace_launch(record: Any, card: str) -> Iterator[None]:
    """Use the Triton kernels as on a card, and call ``record`` in place of launching them."""
    with contextlib.ExitStack() as stack:
        stack.callback(whitenorm.set_kernels, "auto")
        whitenorm.set_kernels("triton")
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "launch", record))
        stack.enter_context(mock.patch.object(tiling, "architecture", return_value=card))
        # Plans depend on the architecture.
        stack.callback(tiling.plan.cache_clear)
        tiling.plan.cache_clear()
        yield


def signature(launch: Launch) -> dict[str, Any]:
    return {
        param.name: "constexpr" if param.is_constexpr else type_name(launch.arguments[param.name])
        for param in launch.kernel.params
    }


def constants(launch: Launch) -> dict[str, Any]:
    return {name: launch.arguments[name] for name, type_ in signature(launch).items() if type_ == "constexpr"}


_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}


def type_name(value: Any) -> Any:
    """Return the type of an argument in a kernel's signature, as Triton chooses it when launching."""
    if value is None:
        return "constexpr"
    if isinstance(value, tuple):
        return tuple("constexpr" if element == 1 else type_name(element) for element in value)
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"


def specializations(launch: Launch) -> tuple[dict[Any, Any], list[tuple[int, ...]]]:
    """Return what is known when compiling: constants, and arguments that are multiples of 16 (addresses, in bytes)."""
    values: dict[Any, Any] = dict(constants(launch))
    aligned: list[tuple[int, ...]] = []
    for i, param in enumerate(launch.kernel.params):
        argument = launch.arguments.get(param.name)
        if isinstance(argument, Tensor) and argument.storage_offset() * argument.element_size() % 16 == 0:
            aligned.append((i,))
        if isinstance(argument, tuple):
            values |= {(i, j): 1 for j, element in enumerate(argument) if element == 1}
            aligned += [(i, j) for j, element in enumerate(argument) if element % 16 == 0]
    return values, aligned


def build_source(launch: Launch) -> ASTSource:
    """Return the source to compile, specialized as when launching."""
    values, aligned = specializations(launch)
    attributes = {path: [["tt.divisibility", 16]] for path in aligned}
    return ASTSource(launch.kernel, signature(launch), values, attributes)


def compile_assembly(launch: Launch, target: GPUTarget) -> tuple[dict[str, Any], int]:
    """Return a kernel's assembly code by format, and its bytes of shared memory; PTX is not assembled."""
    with triton.knobs.compilation.scope(), mock.patch.object(CUDABackend, "make_cubin", return_value=b""):
        triton.knobs.compilation.always_compile = True
        compiled = triton.compile(build_source(launch), target=target, options=launch.options | COMPILE_OPTIONS)
    return compiled.asm, compiled.metadata.shared


def compile_launch(launch: Launch, name: str) -> Row:
    card = CARDS[name]
    begin = time.perf_counter()
    try:
        assembly, shared = compile_assembly(launch, card.target)
        registers, spilled = read_registers(assembly, card.target)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        return Row(launch, name, problem=f"not compiled: {str(error).splitlines()[0]}")
    seconds = time.perf_counter() - begin
    problem = ""
    if shared > card.shared:
        problem = f"a block has {card.shared // 1024} KB"
    elif spilled and launch.name in PASS_OVER_X:
        problem = "spills"
    return Row(launch, name, shared, registers, spilled, seconds, problem)


def read_registers(assembly: dict[str, Any], target: GPUTarget) -> tuple[int, int]:
    """Return the number of registers of a thread, and the bytes that it spills."""
    if target.backend == "hip":
        text = assembly["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
        return registers, 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text)[1])
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(assembly["ptx"])
        file.flush()
        architecture = re.search(r"\.target (\w+)", assembly["ptx"])[1]
        # The options that Triton passes.
        options = ("-lineinfo", "-v", "--regAllocOptLevel=2", f"--gpu-name={architecture}")
        command = [get_ptxas(target.arch).path, *options, file.name, "-o", "/dev/null"]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return int(re.search(r"Used (\d+) registers", report)[1]), int(re.search(r"(\d+) bytes spill stores", report)[1])


HEAD = ("kernel", "layer", "card", "K", "dtype", "warps", "stages", "shared KB", "registers", "spilled B", "")


def format_cells(row: Row) -> list[str]:
    launch = row.launch
    return [
        launch.name.strip("_").removesuffix("_kernel"),
        launch.layer,
        row.card,
        str(launch.features),
        str(launch.dtype).removeprefix("torch."),
        str(launch.options.get("num_warps", 4)),
        str(launch.options.get("num_stages", "")),
        f"{row.shared / 1024:.0f}",
        str(row.registers),
        str(row.spilled),
        row.problem,
    ]


def format_line(row: Row) -> str:
    cells = [f"{cell:<{max(5, len(head))}}" for cell, head in zip(format_cells(row), HEAD, strict=True)]
    return "  ".join([*cells, f"{row.seconds:.1f} s"])


def format_table(rows: list[Row]) -> str:
    lines = [
        "# Resources of the Triton kernels",
        "",
        f"Compiled with triton {triton.__version__} for contiguous inputs, without the cards; "
        "`python -m tools.gpu_check --write` writes this table. Spills are the bytes that a thread stores. Triton "
        "does not support GPUs older than sm_80, such as sm_75: whitenorm warns and uses torch's kernels there.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|{' --- |' * len(HEAD)}",
        *(f"| {' | '.join(format_cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
