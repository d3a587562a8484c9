"""``whitenorm gpu``: do Triton's kernels give the right numbers on this card, and how fast are they?"""

from __future__ import annotations

import argparse
import importlib.util

import torch

from whitenorm._version import __version__
from whitenorm.cli.gpu import timing
from whitenorm.cli.gpu.cases import CASES
from whitenorm.cli.gpu.check import check
from whitenorm.ops import verified_gpus

_LIMIT = 900.0


def main(args: list[str]) -> int:
    """Check, remember, measure; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="whitenorm gpu",
        description="See whether Triton's kernels give the right numbers on this kind of card, and if so turn them on; "
        "measure them. Takes a minute or more, most of it for compiling.",
    )
    parser.add_argument("--device", default="cuda", help="which card, such as cuda:1 (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds for the check (default: %(default)g)")
    parser.add_argument("--forget", action="store_true", help="turn the kernels off again on this kind of card")
    options = parser.parse_args(args)
    device = _device(options.device)
    if options.forget:
        print(f"Torch's kernels are used on this kind of card again ({verified_gpus.remember(device, passed=False)}).")
        return 0
    print(f"{verified_gpus.kind_of(device)}\n\nTriton's kernels beside torch's in float64:", flush=True)
    if not _passed(device, options.limit):
        return 1
    _measure(device)
    return 0


def _device(name: str) -> torch.device:
    """With its number; an error where there is none, or no Triton."""
    kind, _, index = name.partition(":")
    count = torch.cuda.device_count()
    if kind != "cuda" or not (index or "0").isdecimal() or int(index or 0) >= count:
        got = "none" if kind == "cuda" and count == 0 else f"{name}; {count} found"
        raise ValueError(
            f"expected a CUDA device (got {got}), with whitenorm {__version__} and torch {torch.__version__}; "
            "elsewhere torch's kernels are used, and there is nothing to turn on"
        )
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            "expected Triton to be installed (got none); it comes with CUDA builds of torch, otherwise: pip install "
            "triton"
        )
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


def _passed(device: torch.device, limit: float) -> bool:
    """Ask, say what came, and remember it."""
    outcome = check(device, limit)
    print("\n".join(f"  {line}" for line in outcome.words))
    path = verified_gpus.remember(device, outcome.passed)
    if not outcome.passed:
        print(
            f"\nNot passed: torch's kernels stay in use on this kind of card ({path}). Please report it with the lines "
            "above."
        )
        return False
    print(
        "\nPassed: Triton's kernels are used on this kind of card from now on. "
        f"This is kept in {path}; undo it by: whitenorm gpu --forget"
    )
    return True


def _measure(device: torch.device) -> None:
    """Print a table of measured training steps."""
    copied = timing.bandwidth(device)
    print(f"\nA copy moves {copied / 1e9:,.0f} GB/s. Training steps in ms:\n")
    print(_line("layer", "the norm it replaces", "torch's kernels", "Triton's kernels"))
    for name, case in CASES.items():
        steps = [(case.rival, "torch"), (case.layer, "torch"), (case.layer, "triton")]
        seconds = [timing.step_seconds(make(), case.shape, kernels, device) for make, kernels in steps]
        print(_line(name, *[f"{taken * 1e3:.2f}" for taken in seconds]), flush=True)


def _line(*cells: str) -> str:
    return f"  {cells[0]:<16}" + "".join(f"{cell:>22}" for cell in cells[1:])
