"""Time every layer in training and inference beside its alternatives.

These are the norms of PyTorch, a 3×3 convolution of the same width, the papers' formulation, a composition of PyTorch's
operations, the layer with torch's kernels, and the layer on a channels-last input. :mod:`benchmarks.roofline.floor` has
the lower bound.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import whitenorm
from benchmarks import papers
from benchmarks.native import Native
from benchmarks.roofline import floor
from whitenorm.diagnostics import flops, kernels_used, saved_bytes
from whitenorm.ops.check import root_divisor
from whitenorm_lab.costs import build_layer_step
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved


class Method(NamedTuple):
    """A layer, its paper's formulation with the same solver, and the norm of PyTorch that it replaces.

    ``features`` returns the number of features whitened together, from the number of channels, and ``matrices`` the
    number of matrices to solve for, from the number of samples and channels. ``native`` is the layer composed of
    PyTorch's operations, None where the paper's formulation is already such a composition.
    """

    layer: Callable[[int], nn.Module]
    paper: Callable[[int], nn.Module]
    norm: str
    features: Callable[[int], int]
    matrices: Callable[[int, int], int]
    native: Callable[[int], nn.Module] | None = None
    is_per_sample: bool = False


def _at_most(size: int) -> Callable[[int], int]:
    return lambda channels: min(size, channels)


METHODS = {
    "IterNorm": Method(
        whitenorm.IterNorm,
        papers.IterNorm,
        "BatchNorm",
        _at_most(64),
        lambda n, c: -(-c // 64),
        lambda c: Native(c, 64, "newton"),
    ),
    "DBN": Method(
        whitenorm.DecorrelatedBatchNorm,
        papers.DBN,
        "BatchNorm",
        _at_most(16),
        lambda n, c: c // 16,
        lambda c: Native(c, 16, "zca"),
    ),
    "SW": Method(whitenorm.SwitchableWhitening, papers.SW, "BatchNorm", _at_most(16), lambda n, c: n * c // 16),
    "IW": Method(
        lambda c: whitenorm.InstanceWhitening(c, 16),
        papers.IW,
        "InstanceNorm",
        _at_most(16),
        lambda n, c: n * c // 16,
        is_per_sample=True,
    ),
    "GW": Method(
        lambda c: whitenorm.GroupWhitening(min(32, c), c),
        lambda c: papers.GW(min(32, c), c),
        "GroupNorm",
        _at_most(32),
        lambda n, c: n,
        is_per_sample=True,
    ),
    "LayerWhitening": Method(
        whitenorm.LayerWhitening,
        lambda c: papers.GW(root_divisor(c), c),
        "LayerNorm",
        root_divisor,
        lambda n, c: n,
        is_per_sample=True,
    ),
}
_OF_IMAGES, _OF_VECTORS = ("IterNorm", "DBN", "SW", "IW", "GW"), ("IterNorm", "DBN", "GW", "LayerWhitening")
# The IterNorm paper's, ResNet-50's at batch 32, a tiny layer's, vectors, ViT-tiny's tokens, and thousands of tokens.
SHAPES = [
    (64, 64, 32, 32),
    (64, 128, 32, 32),
    (32, 64, 112, 112),
    (32, 64, 56, 56),
    (32, 128, 28, 28),
    (32, 256, 14, 14),
    (32, 512, 7, 7),
    (4, 16, 4, 4),
    (256, 128),
    (1576, 192),
    (4096, 512),
]
QUICK = [(4, 16, 4, 4), (32, 256, 14, 14), (256, 128)]


def measure(shape: tuple[int, ...], rounds: int, budget: float) -> dict[str, Any]:
    """Measure all methods on one shape; the budget is in seconds, for training."""
    names = _OF_IMAGES if len(shape) == 4 else _OF_VECTORS
    rivals = _build_rivals(shape)
    layers = {name: METHODS[name].layer(shape[1]) for name in names}
    training = time_interleaved(_build_steps(layers, rivals, shape), rounds, budget)
    inference = _infer(
        {**rivals, **layers, **(_build_folded(shape[1]) if len(shape) == 4 else {})}, shape, rounds, budget / 2
    )
    rates = floor.measure_rates(shape)
    return {
        "shape": list(shape),
        "rates": rates._asdict(),
        "rivals": {name: summarise(training[name])._asdict() for name in rivals},
        "methods": {name: _build_row(name, shape, rates, rivals, training, inference) for name in names},
    }


def _build_row(
    name: str,
    shape: tuple[int, ...],
    rates: floor.Rates,
    rivals: dict[str, nn.Module],
    training: dict[str, list[float]],
    inference: dict[str, list[float]],
) -> dict[str, Any]:
    times = training[name]
    method, layer = METHODS[name], METHODS[name].layer(shape[1])
    contenders = {"": layer, "_paper": method.paper(shape[1]), "_norm": rivals[method.norm]}
    timing, least = summarise(times), find_floor(name, shape, rates)
    row: dict[str, Any] = {
        **timing._asdict(),
        "kernels": _name_kernels(layer, shape),
        "norm": method.norm,
        "to_norm": median_ratio(times, training[method.norm]),
        "to_batchnorm": median_ratio(times, training["BatchNorm"]),
        "to_paper": median_ratio(times, training[f"{name} paper"]),
        "to_native": median_ratio(times, training[f"{name} native"]) if method.native is not None else None,
        "to_torch": median_ratio(times, training[f"{name} torch"]),
        "to_floor": timing.ms / (1e3 * least),
        "inference_ms": summarise(inference[name]).ms,
        "inference_to_norm": median_ratio(inference[name], inference[method.norm]),
        **{f"saved{key}": measure_saved_share(module, shape) for key, module in contenders.items()},
        **{f"peak{key}": measure_peak_share(module, shape) for key, module in contenders.items()},
    }
    with _torch_kernels():
        row |= {"saved_torch": measure_saved_share(layer, shape), "peak_torch": measure_peak_share(layer, shape)}
    if len(shape) == 4:
        row["to_convolution"] = median_ratio(times, training["3×3 convolution"])
        row["channels_last_to_contiguous"] = median_ratio(training[f"{name} channels-last"], times)
    if name in ("IterNorm", "DBN"):
        row["inference_to_product"] = median_ratio(inference[name], inference[f"product {method.features(shape[1])}"])
    if name == "IterNorm" and len(shape) == 4:
        row["folded_to_convolution"] = median_ratio(inference["folded"], inference["convolution"])
        counts = {key: flops(module, torch.randn(1, *shape[1:])) for key, module in _build_folded(shape[1]).items()}
        row["folded_extra_flops"] = counts["folded"] - counts["convolution"]
    return row


def find_floor(name: str, shape: tuple[int, ...], rates: floor.Rates) -> float:
    """Return the least seconds of a training step."""
    method = METHODS[name]
    size = method.features(shape[1])
    if method.is_per_sample and name != "IW":
        # With fewer values than groups, the smaller dual is solved.
        size = min(size, math.prod(shape[1:]) // size)
    operations = floor.list_needed_operations(
        shape,
        size,
        method.matrices(shape[0], shape[1]),
        "zca" if name == "DBN" else "newton",
        method.is_per_sample,
    )
    return floor.floor_seconds(operations, rates)


def _build_folded(channels: int) -> dict[str, nn.Module]:
    """Return a convolution, and another with a whitening layer folded into it."""
    convolution = nn.Conv2d(channels, channels, 3, padding=1)
    pair = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), whitenorm.IterNorm(channels))
    return {"convolution": convolution, "folded": whitenorm.fold_(pair.eval())}


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


def _build_rivals(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    channels = shape[1]
    rivals: dict[str, nn.Module] = {"GroupNorm": nn.GroupNorm(min(32, channels), channels)}
    if len(shape) == 4:
        rivals["BatchNorm"] = nn.BatchNorm2d(channels)
        rivals["InstanceNorm"] = nn.InstanceNorm2d(channels, affine=True)
        rivals["3×3 convolution"] = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    else:
        rivals["BatchNorm"] = nn.BatchNorm1d(channels)
        rivals["LayerNorm"] = nn.LayerNorm(channels)
    for size in sorted({min(16, channels), min(64, channels)}):
        rivals[f"product {size}"] = GroupedProduct(channels, size)
    return rivals


def _build_steps(
    layers: dict[str, nn.Module], rivals: dict[str, nn.Module], shape: tuple[int, ...]
) -> dict[str, Callable[[], None]]:
    """Return the training steps of all contenders, which are timed in the same rounds."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    last = [tensor.detach().to(memory_format=torch.channels_last) for tensor in (x, grad)] if len(shape) == 4 else []
    steps = {name: build_layer_step(module, x, grad) for name, module in {**rivals, **layers}.items()}
    for name, layer in layers.items():
        method = METHODS[name]
        steps[f"{name} paper"] = build_layer_step(method.paper(shape[1]), x, grad)
        steps[f"{name} torch"] = with_torch_kernels(steps[name])
        if method.native is not None:
            steps[f"{name} native"] = build_layer_step(method.native(shape[1]), x, grad)
        if last:
            steps[f"{name} channels-last"] = build_layer_step(layer, last[0].requires_grad_(), last[1])
    return steps


def with_torch_kernels(run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that runs another with torch's kernels."""

    def run_with_torch_kernels() -> None:
        with _torch_kernels():
            run()

    return run_with_torch_kernels


@contextmanager
def _torch_kernels() -> Iterator[None]:
    whitenorm.set_kernels("torch")
    try:
        yield
    finally:
        whitenorm.set_kernels("auto")


def _name_kernels(layer: nn.Module, shape: tuple[int, ...]) -> str:
    return " and ".join(kernels_used(lambda: layer(torch.randn(shape))))


@torch.no_grad()
def _infer(modules: dict[str, nn.Module], shape: tuple[int, ...], rounds: int, budget: float) -> dict[str, list[float]]:
    x = torch.randn(shape)
    runs = {name: functools.partial(module.eval(), x) for name, module in modules.items()}
    times = time_interleaved(runs, rounds, budget)
    for module in modules.values():
        module.train()
    return times


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
