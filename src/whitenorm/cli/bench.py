"""``whitenorm bench``: time the layers on this machine beside the norms they replace."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from whitenorm.layers import (
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)
from whitenorm.ops.check import largest_divisor, root_divisor

_WARM_UP = 3
_DTYPES = ("float32", "float64", "bfloat16", "float16")


def main(args: list[str]) -> None:
    """Parse the arguments, time all layers and print a table per shape."""
    options = _parse(args)
    device, dtype = _find_device(options.device), getattr(torch, options.dtype)
    with warnings.catch_warnings():
        # About default group sizes that do not divide the channels; the table shows those used instead.
        warnings.simplefilter("ignore")
        images, tokens = _build_image_layers(options.shape), _build_token_layers(options.tokens[1])
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"torch {torch.__version__}, {device}{threads}, {options.dtype}, medians of {options.rounds} rounds")
    for layers, shape in ((images, options.shape), (tokens, options.tokens)):
        _print_table(_time_layers(layers, shape, options.rounds, device, dtype), shape)


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="whitenorm bench",
        description="Time the layers beside the norms they replace: a training step (forward and backward) and a "
        "forward in eval mode. Each whitening layer follows the norm that its multiples refer to.",
    )
    parser.add_argument(
        "--shape",
        type=int,
        nargs="+",
        default=[32, 64, 32, 32],
        metavar="SIZE",
        help="shape of the images, N C L, N C H W or N C D H W (default: 32 64 32 32)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        nargs=2,
        default=[4096, 256],
        metavar=("N", "C"),
        help="shape of the tokens for LayerWhitening (default: 4096 256)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=_DTYPES, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps per layer (default: %(default)s)")
    options = parser.parse_args(args)
    if len(options.shape) not in (3, 4, 5) or min(options.shape) < 1:
        raise ValueError(f"expected --shape of 3 to 5 positive sizes, batch and channels first (got {options.shape})")
    if min(options.tokens) < 1:
        raise ValueError(f"expected --tokens of 2 positive sizes (got {options.tokens})")
    if options.rounds < 1:
        raise ValueError(f"expected --rounds of at least 1 (got {options.rounds})")
    return options


def _find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    # Which of these errors PyTorch raises depends on how it was built.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"expected a --device that works with this PyTorch (got {name!r}: {reason}); use cpu"
        ) from error
    return device


def _build_image_layers(shape: list[int]) -> dict[str, list[nn.Module]]:
    """Return layers for images by the name of the norm they replace, which is the first of each list."""
    channels, dims = shape[1], len(shape) - 2
    num_groups = root_divisor(channels)
    return {
        "BatchNorm": [
            getattr(nn, f"BatchNorm{dims}d")(channels),
            IterNorm(channels),
            DecorrelatedBatchNorm(channels),
            SwitchableWhitening(channels),
        ],
        "GroupNorm": [nn.GroupNorm(num_groups, channels), GroupWhitening(num_groups, channels)],
        "InstanceNorm": [
            getattr(nn, f"InstanceNorm{dims}d")(channels, affine=True),
            InstanceWhitening(channels, largest_divisor(channels, 16)),
        ],
    }


def _build_token_layers(features: int) -> dict[str, list[nn.Module]]:
    return {"LayerNorm": [nn.LayerNorm(features), LayerWhitening(features)]}


Seconds = dict[str, float]


def _time_layers(
    layers: dict[str, list[nn.Module]], shape: list[int], rounds: int, device: torch.device, dtype: torch.dtype
) -> dict[str, dict[str, Seconds]]:
    """Return seconds by norm replaced, by layer and by mode; the steps of all layers are interleaved."""
    steps = {
        (norm, _describe(layer), mode): step
        for norm, members in layers.items()
        for layer in members
        for mode, step in _build_steps(layer.to(device, dtype), shape, device, dtype).items()
    }
    times: dict[str, dict[str, Seconds]] = {}
    for (norm, layer, mode), seconds in time_interleaved(steps, rounds, device).items():
        times.setdefault(norm, {}).setdefault(layer, {})[mode] = seconds
    return times


def _describe(layer: nn.Module) -> str:
    """Return a layer's class name, with its groups."""
    groups = [f"{name}={getattr(layer, name)}" for name in ("num_groups", "group_size") if hasattr(layer, name)]
    return f"{type(layer).__name__} {' '.join(groups[:1])}".strip()


def _build_steps(
    layer: nn.Module, shape: list[int], device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """Return a training step and a forward in eval mode of a layer."""
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)
    leaves = [x, *layer.parameters()]

    def train() -> object:
        return torch.autograd.grad(layer.train()(x), leaves, grad)

    def evaluate() -> object:
        with torch.inference_mode():
            return layer.eval()(x)

    return {"train": train, "eval": evaluate}


def time_interleaved(steps: dict[Any, Callable[[], object]], rounds: int, device: torch.device) -> dict[Any, float]:
    """Return the median seconds of each step, where each round runs every step once.

    Example::

        >>> sorted(time_interleaved({"a": lambda: None, "b": lambda: None}, 3, torch.device("cpu")))
        ['a', 'b']
    """
    for step in steps.values():
        for _ in range(_WARM_UP):
            step()
    seconds: dict[Any, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            _synchronize(device)
            start = time.perf_counter()
            step()
            _synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _print_table(times: dict[str, dict[str, Seconds]], shape: list[int]) -> None:
    width = 2 + max(len(layer) for layers in times.values() for layer in layers)
    print(f"\n{' × '.join(map(str, shape)):<{width}}{'train':>13}{'eval':>21}")
    for layers in times.values():
        norm = next(iter(layers))
        for layer, seconds in layers.items():
            line = f"{'' if layer == norm else '  '}{layer}".ljust(width)
            for mode in ("train", "eval"):
                ratio = "" if layer == norm else f"{seconds[mode] / layers[norm][mode]:.2f}×"
                line += f"{1e3 * seconds[mode]:>10.3f} ms{ratio:>8}"
            print(line.rstrip())
