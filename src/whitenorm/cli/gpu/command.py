"""``whitenorm gpu``: verify and time the Triton kernels on this GPU, and enable them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from whitenorm._version import __version__
from whitenorm.cli.gpu.cases import CASES
from whitenorm.cli.gpu.check import PARTS, build_command, check
from whitenorm.cli.gpu.report import Report, describe_machine, write_report
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops import verified_gpus

_LIMIT = 900.0
_WARM_UP, _ROUNDS, _STEPS = 10, 20, 10
_COPY_BYTES = 2**28


def main(args: list[str]) -> int:
    """Verify the kernels, record the outcome, time them, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="whitenorm gpu",
        description="Verify that the Triton kernels give the right numbers on this model of GPU, enable them if they "
        "do, and time them. This takes a minute or more, mostly for compiling.",
    )
    parser.add_argument("--device", default="cuda", help="the GPU, such as cuda:1 (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=_LIMIT, help="seconds for the verification (default: %(default)g)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("whitenorm-gpu.json"),
        help="file for all results, which you can attach to an issue (default: %(default)s)",
    )
    parser.add_argument("--forget", action="store_true", help="disable the kernels again on this model of GPU")
    options = parser.parse_args(args)
    device = _find_device(options.device)
    if options.forget:
        path = verified_gpus.record(device, passed=False)
        print(f"From now on, torch's kernels are used on this model of GPU ({path}).")
        return 0
    print(f"{verified_gpus.device_key(device)}\n\nTriton's kernels compared with torch's in float64:", flush=True)
    report = _verify(device, options.limit)
    if report.passed:
        report = _measure(device, report)
    write_report(report, options.report)
    print(f"\nAll results are in {options.report}.")
    return 0 if report.passed else 1


def _find_device(name: str) -> torch.device:
    """Return the CUDA device with its index; raise if it does not exist, or if Triton is missing."""
    kind, _, index = name.partition(":")
    count = torch.cuda.device_count()
    if kind != "cuda" or not (index or "0").isdecimal() or int(index or 0) >= count:
        got = "none" if kind == "cuda" and count == 0 else f"{name}; {count} found"
        raise ValueError(
            f"expected a CUDA device (got {got}), with whitenorm {__version__} and torch {torch.__version__}; "
            "other devices use torch's kernels, which need no verification"
        )
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            "expected Triton to be installed (got none); it comes with CUDA builds of torch, otherwise: pip install "
            "triton"
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError(
            "expected compiled kernels (got TRITON_INTERPRET=1, with which Triton interprets them on the CPU); unset it"
        )
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


def _verify(device: torch.device, limit: float) -> Report:
    """Verify the kernels, and print and record the outcome."""
    outcome = check(device, limit)
    print("\n".join(f"  {line}" for line in outcome.lines))
    path = verified_gpus.record(device, outcome.passed)
    if outcome.passed:
        print(
            "\nPassed: Triton's kernels are used on this model of GPU from now on. "
            f"This is recorded in {path}; undo it with: whitenorm gpu --forget"
        )
    else:
        first = " ".join(["python", *build_command(device, PARTS[0])[1:]])
        print(
            f"\nNot passed: torch's kernels remain in use on this model of GPU ({path}). Please report this with the "
            "file below. To locate a fault in memory or between threads, run\n"
            f"  compute-sanitizer --tool memcheck {first}\n"
            "and the same with --tool racecheck, initcheck and synccheck."
        )
    return Report(outcome.passed, outcome.lines, outcome.rows, describe_machine(device))


def _measure(device: torch.device, report: Report) -> Report:
    """Measure training steps, print them as a table, and add them to the report."""
    bandwidth = measure_bandwidth(device)
    print(f"\nA copy moves {bandwidth / 1e9:,.0f} GB/s. Training steps in ms:\n")
    print(_format_line("layer", "the norm it replaces", "torch's kernels", "Triton's kernels"))
    seconds: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        steps = {"norm": (case.build_norm, "torch"), "torch": (case.build_layer, "torch")}
        steps["triton"] = (case.build_layer, "triton")
        seconds[name] = {
            key: measure_step(build(), case.shape, kernels, device) for key, (build, kernels) in steps.items()
        }
        print(_format_line(name, *[f"{value * 1e3:.2f}" for value in seconds[name].values()]), flush=True)
    return report._replace(bandwidth=bandwidth, seconds=seconds)


def _format_line(*cells: str) -> str:
    return f"  {cells[0]:<16}" + "".join(f"{cell:>22}" for cell in cells[1:])


def measure_step(layer: nn.Module, shape: tuple[int, ...], kernels: str, device: torch.device) -> float:
    """Return the median seconds of a float32 forward and backward of a layer."""
    layer = layer.to(device).train()
    x = torch.randn(shape, device=device, requires_grad=True)
    grad = torch.randn(shape, device=device)
    leaves = [x, *layer.parameters()]
    with use_kernels(kernels):
        return _measure_median(lambda: torch.autograd.grad(layer(x), leaves, grad), device)


def measure_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a large copy reads and writes."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _measure_median(lambda: target.copy_(source), device)


def _measure_median(run: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a run, of several in a row, because the host runs ahead as in training."""
    with torch.cuda.device(device):
        for _ in range(_WARM_UP):
            run()
        return statistics.median(_time_round(run) for _ in range(_ROUNDS))


def _time_round(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(_STEPS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / _STEPS
