"""``whitenorm bench``: how fast the layers are on this machine, beside the norms they replace."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

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
from whitenorm.ops.check import root_divisor

_WARM_UP = 3


def main(args: list[str]) -> None:
    """Time every layer on one shape and print a table."""
    parser = argparse.ArgumentParser(
        prog="whitenorm bench",
        description="Time the layers on inputs of one shape, as multiples of the norm that each replaces: forward and "
        "backward in training, forward in eval mode. Steps of all layers are interleaved; times are medians.",
    )
    parser.add_argument("--shape", type=int, nargs="+", default=[32, 64, 32, 32], metavar="N", help="(N, C, H, W)")
    parser.add_argument(
        "--tokens", type=int, nargs=2, default=[4096, 256], metavar="N", help="(N, C) of LayerWhitening"
    )
    parser.add_argument("--device", default="cpu", help="such as cuda (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=20, help="timed steps of each layer (default: %(default)s)")
    options = parser.parse_args(args)
    if len(options.shape) not in (3, 4, 5):
        raise ValueError(f"expected --shape of 3 to 5 sizes, batch and channels first (got {options.shape})")
    if options.rounds < 1:
        raise ValueError(f"expected --rounds of at least 1 (got {options.rounds})")
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"torch {torch.__version__}, {device}, {options.dtype}{threads}\n")
    _print_table(_image_layers(options.shape[1]), tuple(options.shape), options.rounds, device, dtype)
    _print_table(_token_layers(options.tokens[1]), tuple(options.tokens), options.rounds, device, dtype)


def _image_layers(channels: int) -> dict[str, nn.Module]:
    """Return the layers of images, after the norm they are compared with."""
    return {
        "BatchNorm": _BatchNorm(channels),
        "IterNorm": IterNorm(channels),
        "DecorrelatedBatchNorm": DecorrelatedBatchNorm(channels),
        "SwitchableWhitening": SwitchableWhitening(channels),
        "GroupWhitening": GroupWhitening(root_divisor(channels), channels),
        "InstanceWhitening": InstanceWhitening(channels, min(channels, 16) if channels % 16 == 0 else None),
    }


def _token_layers(features: int) -> dict[str, nn.Module]:
    return {"LayerNorm": nn.LayerNorm(features), "LayerWhitening": LayerWhitening(features)}


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm of any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None: ...


def _print_table(
    layers: dict[str, nn.Module], shape: tuple[int, ...], rounds: int, device: torch.device, dtype: torch.dtype
) -> None:
    steps: dict[str, Callable[[], object]] = {}
    for name, layer in layers.items():
        steps[f"{name} train"], steps[f"{name} eval"] = _steps(layer, shape, device, dtype)
    seconds = time_interleaved(steps, rounds, device)
    rival = next(iter(layers))
    print(f"{' × '.join(map(str, shape)):<24}{'train':>12}{'eval':>22}")
    for name in layers:
        cells = ""
        for mode in ("train", "eval"):
            taken, reference = seconds[f"{name} {mode}"], seconds[f"{rival} {mode}"]
            cells += f"{taken * 1e3:>10.3f} ms {taken / reference:>6.2f}×"
        print(f"{name:<24}{cells}")
    print()


def _steps(
    layer: nn.Module, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a training step and an inference step of a layer."""
    layer = layer.to(device, dtype)
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)
    leaves = [x, *layer.parameters()]

    def train() -> object:
        return torch.autograd.grad(layer.train()(x), leaves, grad)

    def infer() -> object:
        with torch.inference_mode():
            return layer.eval()(x)

    return train, infer


def time_interleaved(steps: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each step, all steps run in turn.

    Example::

        >>> sorted(time_interleaved({"a": lambda: None, "b": lambda: None}, 3, torch.device("cpu")))
        ['a', 'b']
    """
    for step in steps.values():
        for _ in range(_WARM_UP):
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            _synchronize(device)
            start = time.perf_counter()
            step()
            _synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
