"""Compare the Triton kernels with torch's kernels in float64.

``python -m whitenorm.cli.gpu.agreement cuda:0`` prints, as JSON, the error of every output, gradient and running
statistic of every layer with the largest allowed error, and exits with 1 if one is larger. ``whitenorm gpu`` runs it in
a child process, so that a GPU fault cannot crash the caller.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)
from whitenorm.ops.launches import record_launches

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = ("contiguous", "channels-last")
# Relative to the largest value, against float64 on the same, already rounded, input.
ALLOWED = {torch.float32: 5e-5, torch.bfloat16: 1.5e-2, torch.float16: 4e-3}
# With a mean of a thousand standard deviations, float32 itself has an error of 1e-4 deviations.
_FAR, _ALLOWED_FAR = 1000, 1e-3
_FAR_LAYERS = ("IterNorm, K = 64", "InstanceWhitening", "GroupWhitening", "SwitchableWhitening")

_TOKENS = "LayerWhitening"
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "IterNorm, K = 64": lambda: IterNorm(64),
    "IterNorm, K = 16": lambda: IterNorm(48, 16),
    "IterNorm, K = 48": lambda: IterNorm(48, 48),
    "IterNorm, K = 128": lambda: IterNorm(128, 128),
    "BatchWhitening, running covariance": lambda: BatchWhitening(32, 16, population="covariance"),
    "DecorrelatedBatchNorm": lambda: DecorrelatedBatchNorm(32),
    "InstanceWhitening": lambda: InstanceWhitening(32, 16),
    "GroupWhitening": lambda: GroupWhitening(16, 48),
    "SwitchableWhitening": lambda: SwitchableWhitening(32),
    "SwitchableWhitening, 5 statistics": lambda: SwitchableWhitening(32, 16, ("bw", "iw", "bn", "in", "ln")),
    f"{_TOKENS}, 96 features": lambda: LayerWhitening(96),
    f"{_TOKENS}, 768 features": lambda: LayerWhitening(768),
}


class Row(NamedTuple):
    """The error of a quantity of a case against float64, relative to its size, and the largest allowed error."""

    case: str
    quantity: str
    error: float
    allowed: float

    @property
    def agrees(self) -> bool:
        # False for NaN.
        return self.error <= self.allowed


def compare_layers(device: torch.device, dtype: torch.dtype, layout: str, small: bool = False) -> Iterator[Row]:
    """Compare every layer on inputs of one dtype and layout; ``small`` is for Triton's interpreter."""
    for name in LAYERS:
        if not (name.startswith(_TOKENS) and layout == "channels-last"):
            yield from _compare(name, device, dtype, layout, small, offset=1)
    if dtype == torch.float32:
        for name in _FAR_LAYERS:
            yield from _compare(name, device, dtype, layout, small, _FAR)


def _compare(
    name: str, device: torch.device, dtype: torch.dtype, layout: str, small: bool, offset: int
) -> Iterator[Row]:
    torch.manual_seed(0)
    layer = randomize(LAYERS[name]())
    x = _make_input(name, layer, layout, small, offset).to(dtype)
    grad = torch.randn(x.shape).to(dtype)
    case = f"{name}, {str(dtype).removeprefix('torch.')}, {layout}" + (
        f", {offset} deviations away" if offset > 1 else ""
    )
    allowed = ALLOWED[dtype] if offset == 1 else _ALLOWED_FAR
    yield from compare(case, layer, x, grad, lambda tensor: tensor.to(device), allowed)


def compare(
    case: str, layer: nn.Module, x: Tensor, grad: Tensor, place: Callable[[Tensor], Tensor], allowed: float
) -> Iterator[Row]:
    """Compare a step of a layer with float64 on the CPU; ``place`` puts its input and gradient on the device."""
    with use_kernels("torch"):
        exact = run_step(copy.deepcopy(layer).double(), x.double(), grad.double())
    placed = place(x), place(grad)
    with use_kernels("triton"), record_launches() as launches:
        actual = run_step(layer.to(placed[0].device), *placed)
    yield Row(case, "kernels of Triton's launched", 0.0 if launches else math.inf, 0.0)
    for quantity, expected in exact.items():
        yield Row(case, quantity, difference(actual[quantity], expected), allowed)


def randomize(layer: nn.Module) -> nn.Module:
    """Add noise to γ, β and the logits, so that none has its initial value."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)
    return layer


def _make_input(name: str, layer: nn.Module, layout: str, small: bool, offset: int) -> Tensor:
    """Return correlated channels with a mean of ``offset`` deviations."""
    if name.startswith(_TOKENS):
        return torch.randn(2 if small else 16, 7, next(layer.parameters()).numel()) * 2 + offset
    channels = next(layer.parameters()).numel()
    # More values than features, in the batch and in every sample.
    shape = (6, channels, 5, 5) if small else (32, channels, 14, 14)
    x = torch.randn(shape)
    x = x + 0.5 * x.roll(1, 1) + offset
    return x.to(memory_format=torch.channels_last) if layout == "channels-last" else x


def run_step(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Run a training step and inference, and return all outputs, gradients and buffers."""
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(grad)
    assert x.grad is not None
    results = {"output": y, "gradient of the input": x.grad}
    results |= {f"gradient of {name}": parameter.grad for name, parameter in layer.named_parameters()}
    results |= dict(layer.named_buffers())
    with torch.no_grad():
        return results | {"output at inference": layer.eval()(x)}


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest value."""
    expected = expected.detach().cpu().double()
    error = actual.detach().cpu().double() - expected
    return (error.abs().max() / expected.abs().max().clamp(min=1)).item()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m whitenorm.cli.gpu.agreement", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("device", type=torch.device)
    parser.add_argument("--dtype", choices=DTYPES, help="only this one")
    parser.add_argument("--layout", choices=LAYOUTS, help="only this one")
    parser.add_argument("--small", action="store_true", help="small inputs, for Triton's interpreter")
    options = parser.parse_args()
    dtypes = [options.dtype] if options.dtype else list(DTYPES)
    layouts = [options.layout] if options.layout else list(LAYOUTS)
    rows = [
        row
        for dtype, layout in itertools.product(dtypes, layouts)
        for row in compare_layers(options.device, DTYPES[dtype], layout, options.small)
    ]
    print(json.dumps(rows))
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
