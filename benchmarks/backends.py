"""Time the C++ kernels beside torch's operations on this CPU: ``python -m benchmarks.backends``.

The table is what the choice in ``whitenorm/ops/dispatch.py`` rests on. ``docs/benchmarks.md`` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whitenorm
from whitenorm.ops.native.library import load_library
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

RESULTS = Path(__file__).parent / "results" / "backends.json"
_ROUNDS, _BUDGET = 25, 4.0

Case = tuple[str, Callable[[], nn.Module], tuple[int, ...]]


def list_cases() -> Iterator[Case]:
    """Yield name, layer and shape of each case: the suite's shapes, and group sizes between them."""
    for shape in ((256, 128), (4096, 512), (4, 16, 4, 4), (32, 256, 14, 14), (64, 64, 32, 32), (32, 512, 7, 7)):
        yield "IterNorm", lambda shape=shape: whitenorm.IterNorm(shape[1]), shape
    for size in (1, 2, 4, 8, 12, 16, 24, 32, 48):
        for shape in ((32, 192, 14, 14), (32, 96, 56, 56)):
            if shape[1] % size == 0:
                yield f"IterNorm, group size {size}", lambda c=shape[1], k=size: whitenorm.IterNorm(c, k), shape
    yield "DBN", lambda: whitenorm.DecorrelatedBatchNorm(64), (64, 64, 32, 32)
    for shape in ((64, 64, 32, 32), (32, 256, 14, 14)):
        yield "SW", lambda c=shape[1]: whitenorm.SwitchableWhitening(c), shape
    for shape in ((32, 256, 14, 14), (32, 512, 7, 7), (32, 64, 56, 56)):
        yield "IW, group size 16", lambda c=shape[1]: whitenorm.InstanceWhitening(c, 16), shape
    for groups, shape in ((64, (32, 512, 7, 7)), (32, (32, 64, 56, 56)), (16, (32, 256, 14, 14))):
        yield f"GW, {groups} groups", lambda g=groups, c=shape[1]: whitenorm.GroupWhitening(g, c), shape
    for groups, shape in ((None, (1576, 192)), (None, (4096, 512)), (64, (4096, 512))):
        name = "LayerWhitening" if groups is None else f"LayerWhitening, {groups} groups"
        yield name, lambda g=groups, c=shape[1]: whitenorm.LayerWhitening(c, g), shape


def measure(layer: nn.Module, shape: tuple[int, ...], channels_last: bool) -> dict[str, Any]:
    """Measure a training step (forward and backward) with each backend, in turns."""
    torch.manual_seed(0)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x, grad = (torch.randn(shape).to(memory_format=memory_format) for _ in range(2))
    leaves = [x.requires_grad_(), *layer.parameters()]

    def step(kernels: str) -> object:
        whitenorm.set_kernels(kernels)
        return torch.autograd.grad(layer(x), leaves, grad)

    runs = {kernels: lambda kernels=kernels: step(kernels) for kernels in ("torch", "native", "auto")}
    times = time_interleaved(runs, _ROUNDS, _BUDGET)
    return {
        **{kernels: summarise(values)._asdict() for kernels, values in times.items()},
        "speedup": median_ratio(times["torch"], times["native"]),
        "auto_speedup": median_ratio(times["torch"], times["auto"]),
    }


def format_table(results: dict[str, Any]) -> str:
    """Tabulate the times, and where the C++ kernels are not chosen."""
    machine = results["machine"]
    lines = [
        "Median milliseconds of a training step of one layer in float32; *auto* is the default choice of kernels. "
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, {results['binary']}, "
        f"commit `{machine['commit'][:10]}`.",
        "",
        "| layer | input | torch | C++ | auto | C++, times faster |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        shape = "×".join(map(str, row["shape"])) + (", channels-last" if row["channels_last"] else "")
        cells = [f"{row[kernels]['ms']:.2f}" for kernels in ("torch", "native", "auto")]
        lines.append(f"| {row['name']} | {shape} | {' | '.join(cells)} | {row['speedup']:.2f}× |")
    return "\n".join(lines)


def main() -> None:
    """Measure all cases, print the table and write the results."""
    library = load_library()
    if library.functions is None:
        raise SystemExit(f"the C++ kernels are {library.description}")
    rows = []
    for name, make, shape in list_cases():
        for channels_last in (False, True) if len(shape) == 4 else (False,):
            row = measure(make(), shape, channels_last)
            rows.append({"name": name, "shape": shape, "channels_last": channels_last, **row})
            print(f"{name} {shape} {'channels-last ' if channels_last else ''}{row['speedup']:.2f}×", flush=True)
    results = {"machine": describe_machine(), "binary": library.description, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(format_table(results))


if __name__ == "__main__":
    main()
