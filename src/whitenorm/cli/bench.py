"""``whitenorm bench``: time the layers on this machine beside the norms they replace."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.layers import (
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)
from whitenorm.ops.check import largest_divisor, root_divisor
from whitenorm.ops.dispatch import describe_backends

_WARM_UP = 3
_DTYPES = ("float32", "float64", "bfloat16", "float16")


def main(args: list[str]) -> None:
    """Parse the arguments, time all layers and print a table per shape."""
    options = _parse(args)
    if options.info:
        for name, description in describe_backends().items():
            print(f"{name:<8}{description}")
        return
    device, dtype = _find_device(options.device), getattr(torch, options.dtype)
    with warnings.catch_warnings():
        # About default group sizes that do not divide the channels; the table shows those used instead.
        warnings.simplefilter("ignore")
        images = _build_image_layers(options.shape)
        tokens = [[nn.LayerNorm(options.tokens[1]), LayerWhitening(options.tokens[1])]]
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"torch {torch.__version__}, {device}{threads}, {options.dtype}, medians of {options.rounds} rounds")
    for groups, shape in ((images, options.shape), (tokens, options.tokens)):
        x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
        grad = torch.randn(shape, device=device, dtype=dtype)
        steps = {
            (layer, mode): step
            for layer in itertools.chain(*groups)
            for mode, step in _build_steps(layer.to(device, dtype), x, grad).items()
        }
        _print_table(groups, shape, time_interleaved(steps, options.rounds, device))


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
    parser.add_argument("--info", action="store_true", help="only print which backends are available, and why")
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


def _build_image_layers(shape: list[int]) -> list[list[nn.Module]]:
    """Return groups of layers for images: a norm, and the layers that replace it."""
    channels, dims = shape[1], len(shape) - 2
    num_groups = root_divisor(channels)
    batch_norm, instance_norm = getattr(nn, f"BatchNorm{dims}d"), getattr(nn, f"InstanceNorm{dims}d")
    return [
        [batch_norm(channels), IterNorm(channels), DecorrelatedBatchNorm(channels), SwitchableWhitening(channels)],
        [nn.GroupNorm(num_groups, channels), GroupWhitening(num_groups, channels)],
        [instance_norm(channels, affine=True), InstanceWhitening(channels, largest_divisor(channels, 16))],
    ]


def _build_steps(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """Return a training step and a forward in eval mode of a layer."""
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


def _print_table(groups: list[list[nn.Module]], shape: list[int], seconds: dict[Any, float]) -> None:
    names = {layer: _describe(layer) for layer in itertools.chain(*groups)}
    width = 2 + max(map(len, names.values()))
    print(f"\n{' × '.join(map(str, shape)):<{width}}{'train':>13}{'eval':>21}")
    for group in groups:
        for layer in group:
            line = f"{'' if layer is group[0] else '  '}{names[layer]}".ljust(width)
            for mode in ("train", "eval"):
                ratio = "" if layer is group[0] else f"{seconds[layer, mode] / seconds[group[0], mode]:.2f}×"
                line += f"{1e3 * seconds[layer, mode]:>10.3f} ms{ratio:>8}"
            print(line.rstrip())


def _describe(layer: nn.Module) -> str:
    """Return a layer's class name, and its number of groups or its group size."""
    for name in ("num_groups", "group_size"):
        if hasattr(layer, name):
            return f"{type(layer).__name__} {name}={getattr(layer, name)}"
    return type(layer).__name__
