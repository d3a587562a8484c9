"""Run the Triton kernels under the conditions that training meets, beyond inputs of usual sizes.

``python -m whitenorm.cli.gpu.conditions cuda:0`` prints rows as :mod:`whitenorm.cli.gpu.agreement` does: many matrices
and tokens, odd shapes, unaligned and strided inputs, uninitialized memory filled with NaN, the same step many times
compared bit for bit, and, on a GPU, a side stream, another current device, a CUDA graph, and a tensor of more than 2³¹
elements if the memory suffices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from whitenorm.cli.gpu.agreement import ALLOWED, Row, compare, difference, randomize, run_step
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.layers import BatchWhitening, GroupWhitening, InstanceWhitening, IterNorm, LayerWhitening
from whitenorm.layers import SwitchableWhitening as Switchable

_REPETITIONS = 100
# Elements of a tensor that 32 bits cannot index, in blocks of a few images; and bytes that its step needs per element.
_MANY_ELEMENTS = 2**31 + 2**20
_BLOCK = (8, 64, 32, 32)
_BYTES_PER_ELEMENT = 10

Build = Callable[[], nn.Module]
LAYERS: dict[str, Build] = {
    "IterNorm": lambda: IterNorm(32, 16),
    "InstanceWhitening": lambda: InstanceWhitening(32, 16),
    "GroupWhitening": lambda: GroupWhitening(16, 32),
    "SwitchableWhitening": lambda: Switchable(32, 16),
}
# More matrices than programs of a solve, more tokens than programs of their kernels, and sizes that fill no tile.
SHAPES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "600 matrices of samples": (lambda: InstanceWhitening(32, 16), (300, 32, 6, 6)),
    "1,030 matrices of a batch": (lambda: IterNorm(1030 * 2, 2), (4, 1030 * 2, 3, 3)),
    "530 mixed matrices": (lambda: Switchable(32, 16), (265, 32, 5, 5)),
    "530 group matrices": (lambda: GroupWhitening(32, 64), (530, 64, 9, 9)),
    "5,003 tokens": (lambda: LayerWhitening(96), (5003, 96)),
    "7×7": (lambda: IterNorm(64), (32, 64, 7, 7)),
    "1×1": (lambda: IterNorm(32, 16), (96, 32, 1, 1)),
    "(N, C)": (lambda: BatchWhitening(32, 16), (96, 32)),
    "(N, C, L)": (lambda: GroupWhitening(8, 24), (5, 24, 37)),
    "(N, C, D, H, W)": (lambda: IterNorm(16), (3, 16, 3, 5, 7)),
}
SMALL_SHAPES = ("7×7", "1×1", "(N, C)", "(N, C, L)", "(N, C, D, H, W)")


def compare_conditions(device: torch.device, small: bool = False) -> Iterator[Row]:
    """Run the layers under all conditions that the device allows; ``small`` is for Triton's interpreter."""
    for name in SMALL_SHAPES if small else SHAPES:
        build, shape = SHAPES[name]
        yield from _compare(name, build(), _random(2 if small else None, shape), device)
    for name, build in LAYERS.items():
        if small and name != "IterNorm":
            continue
        x = _random(4, (8, 32, 9, 9))
        yield from _compare(f"{name}, unaligned", build(), x, device, place=copy_unaligned)
        yield from _compare(f"{name}, every other column", build(), x, device, place=copy_strided)
        with nan_in_new_memory():
            yield from _compare(f"{name}, new memory filled with NaN", build(), x, device)
        yield _compare_repetitions(name, build(), x, device, 3 if small else _REPETITIONS)
        if device.type == "cuda":
            yield from _compare_side_stream(name, build(), x, device)
            yield from _compare_graph(name, build(), x, device)
    if torch.cuda.device_count() > 1 and device.type == "cuda":
        other = torch.device("cuda", (device.index + 1) % torch.cuda.device_count())
        with torch.cuda.device(other):
            yield from _compare("another current device", IterNorm(32, 16), _random(4, (8, 32, 9, 9)), device)
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > _BYTES_PER_ELEMENT * _MANY_ELEMENTS:
        yield from _compare_many_elements(device)


def _random(most: int | None, shape: tuple[int, ...]) -> Tensor:
    """Return correlated channels, of at most a number of images."""
    torch.manual_seed(0)
    x = torch.randn(shape[0] if most is None or len(shape) == 2 else max(most, 2), *shape[1:])
    return x + 0.5 * x.roll(1, 1) + 1


def copy_unaligned(x: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor whose memory starts one element after an aligned address."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=device)
    return memory[1:].view(x.shape).copy_(x)


def copy_strided(x: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor with unused memory between its columns."""
    memory = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype, device=device)
    return memory[..., ::2].copy_(x)


def _on_device(x: Tensor, device: torch.device) -> Tensor:
    return x.to(device)


def _compare(
    case: str,
    layer: nn.Module,
    x: Tensor,
    device: torch.device,
    place: Callable[[Tensor, torch.device], Tensor] = _on_device,
) -> Iterator[Row]:
    layer, grad = randomize(layer), torch.randn(x.shape)
    yield from compare(case, layer, x, grad, lambda tensor: place(tensor, device), ALLOWED[torch.float32])


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Fill new tensors with NaN, so that a kernel that reads one before it was written gives NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _compare_repetitions(name: str, layer: nn.Module, x: Tensor, device: torch.device, times: int) -> Row:
    """Run the same step again and again: a race between programs shows as another result."""
    layer, x = randomize(layer).to(device), x.to(device)
    grad = torch.randn_like(x)
    state = {key: value.clone() for key, value in layer.state_dict().items()}

    def step() -> dict[str, Tensor]:
        layer.load_state_dict(state)
        layer.zero_grad()
        return {key: value.clone() for key, value in run_step(layer.train(), x, grad).items()}

    with use_kernels("triton"):
        first = step()
        deviating = sum(any(not torch.equal(first[key], value) for key, value in step().items()) for _ in range(times))
    return Row(f"{name}, {times} times the same step", "steps with other bits", float(deviating), 0.0)


def _compare_side_stream(name: str, layer: nn.Module, x: Tensor, device: torch.device) -> Iterator[Row]:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        # Busy, so that a kernel on another stream would run before its input is there.
        torch.cuda._sleep(10**8)
        yield from _compare(f"{name}, side stream", layer, x, device)
    torch.cuda.current_stream(device).wait_stream(stream)


def _compare_graph(name: str, layer: nn.Module, x: Tensor, device: torch.device) -> Iterator[Row]:
    """Capture a training step as a CUDA graph, replay it with another input, and compare with the step itself."""
    layer = randomize(layer).to(device)
    case = f"{name}, CUDA graph"
    inputs = torch.zeros_like(x, device=device).requires_grad_()
    grad = torch.randn(x.shape, device=device)
    leaves = [inputs, *layer.parameters()]

    def step() -> tuple[Tensor, ...]:
        y = layer(inputs)
        return y, *torch.autograd.grad(y, leaves, grad)

    with use_kernels("triton"):
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            inputs.copy_(x.to(device).flip(0))
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            inputs.copy_(x)
        graph.replay()
        replayed = [tensor.clone() for tensor in captured]
        for index, (actual, expected) in enumerate(zip(replayed, step(), strict=True)):
            quantity = "output" if index == 0 else f"gradient {index}"
            yield Row(case, quantity, difference(actual, expected), 0.0)


def _compare_many_elements(device: torch.device) -> Iterator[Row]:
    """Repeat a block of images until 32 bits cannot index them: all have the result of the block alone."""
    torch.manual_seed(0)
    layer = randomize(IterNorm(64)).to(device)
    block, grad = torch.randn(2, *_BLOCK, device=device).bfloat16()
    times = _MANY_ELEMENTS // block.numel() + 1
    case = f"{times * block.numel():,} elements"
    with use_kernels("triton"):
        expected = run_step(layer, block, grad)
        layer.zero_grad()
        x = block.repeat(times, 1, 1, 1).requires_grad_()
        y = layer.train()(x)
        y.backward(grad.repeat(times, 1, 1, 1))
    assert x.grad is not None
    allowed = ALLOWED[torch.bfloat16]
    for place, index in {"first": 0, "middle": times // 2, "last": times - 1}.items():
        images = slice(index * len(block), (index + 1) * len(block))
        yield Row(case, f"output, {place} block", difference(y[images], expected["output"]), allowed)
        gradient = expected["gradient of the input"]
        yield Row(case, f"gradient of the input, {place} block", difference(x.grad[images], gradient), allowed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m whitenorm.cli.gpu.conditions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("device", type=torch.device)
    parser.add_argument("--small", action="store_true", help="small inputs, for Triton's interpreter")
    options = parser.parse_args()
    rows = list(compare_conditions(options.device, options.small))
    print(json.dumps(rows))
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
