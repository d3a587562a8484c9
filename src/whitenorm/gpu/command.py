"""``whitenorm gpu``: do Triton's kernels give the right numbers on this card, and how fast are they?"""

from __future__ import annotations

import argparse
import importlib.util

import torch
from torch import nn

from whitenorm._version import __version__
from whitenorm.gpu import cards, timing
from whitenorm.gpu.cases import CASES, Case
from whitenorm.gpu.check import check
from whitenorm.gpu.prediction import predicted_seconds
from whitenorm.gpu.work import layer_work
from whitenorm.kernels import trust

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
        print(f"Forgotten, in {trust.remember(device, passed=False)}. Torch's kernels are used on this kind of card.")
        return 0
    print(f"{trust.kind_of(device)}\n\nTriton's kernels beside torch's in float64:", flush=True)
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
    path = trust.remember(device, outcome.passed)
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
    """A table of training steps, measured beside predicted."""
    card = cards.card_of(torch.cuda.get_device_name(device))
    if card is None:
        attained = timing.bandwidth(device)
        card = cards.CARDS["A100 80GB"].scaled(attained / cards.BANDWIDTH_ATTAINED)
        print(f"\nThis card is not in the table of cards; a copy moves {attained / 1e9:,.0f} GB/s on it.")
    print(f"\nTraining steps in ms, measured (and predicted, from {card.source}):\n")
    print(_line("layer", "the norm it replaces", "torch's kernels", "Triton's kernels"))
    for name, case in CASES.items():
        print(_line(name, *_times(case, card, device)), flush=True)


def _times(case: Case, card: cards.Card, device: torch.device) -> list[str]:
    chosen = [(case.rival, "torch"), (case.layer, "torch"), (case.layer, "triton")]
    return [_time(make(), case, kernels, card, device) for make, kernels in chosen]


def _time(layer: nn.Module, case: Case, kernels: str, card: cards.Card, device: torch.device) -> str:
    measured = timing.step_seconds(layer, case.shape, kernels, device)
    predicted = predicted_seconds(layer_work(layer, case.shape, kernels).operations, card)
    return f"{measured * 1e3:.2f} ({predicted * 1e3:.2f})"


def _line(*cells: str) -> str:
    return f"  {cells[0]:<16}" + "".join(f"{cell:>22}" for cell in cells[1:])
