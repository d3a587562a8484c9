"""Time every layer in training and inference against its alternatives.

These are native BatchNorm and GroupNorm, a 3×3 convolution of the same width, the papers' formulation, a
composition of PyTorch's operations, and the floor: five matrix products of 2·N·C·L·K FLOPs at the machine's best rate,
the solve at the rate at which as many matrices of its size are multiplied or decomposed, and native BatchNorm's time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import whitenorm
from benchmarks import papers
from benchmarks.native import Native
from whitenorm.diagnostics import flops, saved_bytes
from whitenorm_lab.costs import build_layer_step
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved


class Method(NamedTuple):
    """A layer, its paper's formulation with the same solver, and the number of features whitened together.

    ``matrices`` returns the number of matrices to solve for, from the number of samples and channels. ``native`` is the
    layer composed of PyTorch's operations, None where the paper's formulation is already such a composition.
    """

    layer: Callable[[int], nn.Module]
    paper: Callable[[int], nn.Module]
    features: int
    matrices: Callable[[int, int], int]
    native: Callable[[int], nn.Module] | None = None


METHODS = {
    "IterNorm": Method(
        whitenorm.IterNorm, papers.IterNorm, 64, lambda n, c: -(-c // 64), lambda c: Native(c, 64, "newton")
    ),
    "DBN": Method(
        whitenorm.DecorrelatedBatchNorm, papers.DBN, 16, lambda n, c: c // 16, lambda c: Native(c, 16, "zca")
    ),
    "SW": Method(whitenorm.SwitchableWhitening, papers.SW, 16, lambda n, c: n * c // 16),
    "IW": Method(lambda channels: whitenorm.InstanceWhitening(channels, 16), papers.IW, 16, lambda n, c: n * c // 16),
    "GW": Method(
        lambda channels: whitenorm.GroupWhitening(32, channels), lambda c: papers.GW(32, c), 32, lambda n, c: n
    ),
}
# Fewest known products for five Newton steps: 12 forward, and 16 backward if the iterates are saved.
_NEWTON_PRODUCTS = 28
# Products of ZCA besides the decomposition: one for the matrix, and two changes of basis in backward.
_ZCA_PRODUCTS = 5
# The IterNorm paper's, ResNet-50's at batch 32, vectors, and tokens as one matrix.
SHAPES = [
    (64, 64, 32, 32),
    (64, 128, 32, 32),
    (32, 64, 112, 112),
    (32, 64, 56, 56),
    (32, 128, 28, 28),
    (32, 256, 14, 14),
    (32, 512, 7, 7),
    (256, 128),
    (4096, 512),
]
QUICK = [(64, 64, 32, 32), (32, 256, 14, 14), (32, 512, 7, 7)]
LARGE = 1_600_000


def measure(shape: tuple[int, ...], rate: float, rounds: int, budget: float) -> dict[str, Any]:
    """Measure all methods on one shape; returns one row per method."""
    names = [name for name in METHODS if name not in ("SW", "IW") or len(shape) > 2]
    rivals = _rivals(shape)
    training = _train({**rivals, **_pairs(names, shape[1])}, shape, rounds, budget)
    if len(shape) == 4:
        last = {f"{name} channels-last": METHODS[name].layer(shape[1]) for name in names}
        training.update(_train(last, shape, rounds, budget, torch.channels_last))
    forward = _infer({**rivals, **_pairs(names, shape[1])}, shape, rounds, budget, training=True)
    inference = _infer({**rivals, **_pairs(names, shape[1])}, shape, rounds, budget, training=False)
    if len(shape) == 4:
        inference.update(_infer(_build_folded(shape[1]), shape, rounds, budget, training=False))
    return {
        "shape": list(shape),
        "rivals": {name: summarise(training[name])._asdict() for name in rivals},
        "methods": {name: _row(name, shape, rate, training, forward, inference) for name in names},
    }


def _row(
    name: str,
    shape: tuple[int, ...],
    rate: float,
    training: dict[str, list[float]],
    forward: dict[str, list[float]],
    inference: dict[str, list[float]],
) -> dict[str, Any]:
    times, base = training[name], training["BatchNorm"]
    method = METHODS[name]
    floor = 5 * 2 * math.prod(shape) * solve_size(name, shape) / rate + solve_floor(name, shape)
    row = {
        **summarise(times)._asdict(),
        "to_batchnorm": median_ratio(times, base),
        "to_groupnorm": median_ratio(times, training["GroupNorm"]),
        "to_paper": median_ratio(times, training[f"{name} paper"]),
        "to_native": median_ratio(times, training[f"{name} native"]) if method.native is not None else None,
        "to_floor": median_ratio(times, [floor + value for value in base]),
        "forward_to_batchnorm": median_ratio(forward[name], forward["BatchNorm"]),
        "forward_to_paper": median_ratio(forward[name], forward[f"{name} paper"]),
        "inference_ms": summarise(inference[name]).ms,
        "inference_to_batchnorm": median_ratio(inference[name], inference["BatchNorm"]),
        "saved": measure_saved_share(method.layer(shape[1]), shape),
        "saved_paper": measure_saved_share(method.paper(shape[1]), shape),
        "saved_batchnorm": measure_saved_share(_batchnorm(shape), shape),
        "peak": measure_peak_share(method.layer(shape[1]), shape),
        "peak_paper": measure_peak_share(method.paper(shape[1]), shape),
        "peak_batchnorm": measure_peak_share(_batchnorm(shape), shape),
    }
    if len(shape) == 4:
        row["to_convolution"] = median_ratio(times, training["3×3 convolution"])
        row["channels_last_to_contiguous"] = summarise(training[f"{name} channels-last"]).ms / row["ms"]
    if name in ("IterNorm", "DBN"):
        row["inference_to_product"] = median_ratio(
            inference[name], inference[f"product {min(method.features, shape[1])}"]
        )
    if name == "IterNorm" and len(shape) == 4:
        row["folded_to_convolution"] = median_ratio(inference["folded"], inference["convolution"])
        counts = {key: flops(module, torch.randn(1, *shape[1:])) for key, module in _build_folded(shape[1]).items()}
        row["folded_extra_flops"] = counts["folded"] - counts["convolution"]
    return row


def solve_size(name: str, shape: tuple[int, ...]) -> int:
    """Return K or, where GW's groups have fewer values than there are groups, the number of values."""
    size = min(METHODS[name].features, shape[1])
    return min(size, math.prod(shape[1:]) // size) if name == "GW" else size


def solve_floor(name: str, shape: tuple[int, ...]) -> float:
    """Return the seconds of the solve and its backward: the products, and for ZCA the decomposition."""
    method = METHODS[name]
    size, count = solve_size(name, shape), method.matrices(shape[0], shape[1])
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(count, size, size, generator=generator)
    out = torch.empty_like(a)
    product = min(time_interleaved({"": lambda: torch.bmm(a, a, out=out)}, 20, 1.0)[""])
    if name != "DBN":
        return _NEWTON_PRODUCTS * product
    cov = a @ a.mT + torch.eye(size)
    return _ZCA_PRODUCTS * product + min(time_interleaved({"": lambda: torch.linalg.eigh(cov)}, 20, 1.0)[""])


def _build_folded(channels: int) -> dict[str, nn.Module]:
    """Return a convolution, and another with a whitening layer folded into it."""
    convolution = nn.Conv2d(channels, channels, 3, padding=1)
    pair = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), whitenorm.IterNorm(channels))
    return {"convolution": convolution, "folded": whitenorm.fold_(pair.eval())}


def _pairs(names: list[str], channels: int) -> dict[str, nn.Module]:
    modules: dict[str, nn.Module] = {}
    for name in names:
        method = METHODS[name]
        modules[name], modules[f"{name} paper"] = method.layer(channels), method.paper(channels)
        if method.native is not None:
            modules[f"{name} native"] = method.native(channels)
    return modules


class GroupedProduct(nn.Module):
    """A grouped 1×1 convolution as one batched matrix product, the operation of inference before folding."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(channels // size, size, size))

    def forward(self, x: Tensor) -> Tensor:
        groups, size, _ = self.matrix.shape
        if x.ndim == 2:
            return (x.view(-1, groups, size).transpose(0, 1) @ self.matrix.mT).transpose(0, 1).reshape(x.shape)
        return (self.matrix @ x.reshape(x.shape[0], groups, size, -1)).view_as(x)


def _rivals(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    channels = shape[1]
    rivals: dict[str, nn.Module] = {"BatchNorm": _batchnorm(shape), "GroupNorm": nn.GroupNorm(32, channels)}
    for size in sorted({16, min(64, channels)}):
        rivals[f"product {size}"] = GroupedProduct(channels, size)
    if len(shape) == 4:
        rivals["3×3 convolution"] = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return rivals


def _batchnorm(shape: tuple[int, ...]) -> nn.Module:
    return nn.BatchNorm2d(shape[1]) if len(shape) == 4 else nn.BatchNorm1d(shape[1])


def _train(
    modules: dict[str, nn.Module],
    shape: tuple[int, ...],
    rounds: int,
    budget: float,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> dict[str, list[float]]:
    x = torch.randn(shape).to(memory_format=memory_format).requires_grad_()
    grad = torch.randn(shape).to(memory_format=memory_format)
    return time_interleaved(
        {name: build_layer_step(module, x, grad) for name, module in modules.items()}, rounds, budget
    )


@torch.no_grad()
def _infer(
    modules: dict[str, nn.Module], shape: tuple[int, ...], rounds: int, budget: float, training: bool
) -> dict[str, list[float]]:
    x = torch.randn(shape)
    runs = {name: functools.partial(module.train(training), x) for name, module in modules.items()}
    return time_interleaved(runs, rounds, budget)


def measure_saved_share(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the bytes saved for backward without parameters, as a multiple of the input's."""
    x = torch.randn(shape)
    return saved_bytes(module, x) / x.nbytes


def measure_peak_share(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the peak of the memory that a training step allocates, as a multiple of the input's."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    module(x).backward(grad)
    x.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module(x).backward(grad)
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes)) / x.nbytes
