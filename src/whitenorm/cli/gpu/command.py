"""``whitenorm gpu``: verify and time the Triton kernels on this GPU, and enable them."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable

import torch
from torch import nn

from whitenorm._version import __version__
from whitenorm.cli.gpu.cases import CASES
from whitenorm.cli.gpu.check import check
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
    parser.add_argument("--forget", action="store_true", help="disable the kernels again on this model of GPU")
    options = parser.parse_args(args)
    device = _find_device(options.device)
    if options.forget:
        path = verified_gpus.record(device, passed=False)
        print(f"From now on, torch's kernels are used on this model of GPU ({path}).")
        return 0
    print(f"{verified_gpus.device_key(device)}\n\nTriton's kernels compared with torch's in float64:", flush=True)
    if not _verify(device, options.limit):
        return 1
    _print_times(device)
    return 0


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
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


def _verify(device: torch.device, limit: float) -> bool:
    """Verify the kernels, print and record the outcome, and return whether they passed."""
    outcome = check(device, limit)
    print("\n".join(f"  {line}" for line in outcome.lines))
    path = verified_gpus.record(device, outcome.passed)
    if not outcome.passed:
        print(
            f"\nNot passed: torch's kernels remain in use on this model of GPU ({path}). Please report this with the "
            "lines above."
        )
        return False
    print(
        "\nPassed: Triton's kernels are used on this model of GPU from now on. "
        f"This is recorded in {path}; undo it with: whitenorm gpu --forget"
    )
    return True


def _print_times(device: torch.device) -> None:
    """Measure training steps and print them as a table."""
    bandwidth = measure_bandwidth(device)
    print(f"\nA copy moves {bandwidth / 1e9:,.0f} GB/s. Training steps in ms:\n")
    print(_format_line("layer", "the norm it replaces", "torch's kernels", "Triton's kernels"))
    for name, case in CASES.items():
        steps = [(case.build_norm, "torch"), (case.build_layer, "torch"), (case.build_layer, "triton")]
        times = [measure_step(build(), case.shape, kernels, device) for build, kernels in steps]
        print(_format_line(name, *[f"{seconds * 1e3:.2f}" for seconds in times]), flush=True)


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
