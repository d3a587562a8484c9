"""What reaches the compiled kernels, without a GPU: a function that does nothing takes their place."""

import pytest
import torch

import whitenorm

pytest.importorskip("triton", minversion="3.4")

from benchmarks.roofline.host import replace_compiled_kernels
from whitenorm.ops.triton import tiling

LAYERS = {
    "batch": (lambda: whitenorm.IterNorm(64), (8, 64, 32, 32)),
    "group": (lambda: whitenorm.GroupWhitening(32, 64), (2, 64, 16, 16)),
    "switchable": (lambda: whitenorm.SwitchableWhitening(32), (2, 32, 8, 8)),
    "tokens": (lambda: whitenorm.LayerWhitening(96), (8, 96)),
}


def step_calls(layer, x, calls):
    """Run a training step and return the kernels that it calls, each with its grid and arguments."""
    calls.clear()
    layer(x).sum().backward()
    return list(calls)


def describe(calls):
    """Replace tensors, which are new in every step, by their shape and strides."""

    def describe_value(value):
        return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    return [(name, grid, tuple(map(describe_value, arguments))) for name, grid, arguments in calls]


@pytest.mark.parametrize("name", LAYERS)
def test_a_repeated_launch_has_the_arguments_of_the_first(name):
    """The first goes through Triton's launcher, the others do not."""
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape, requires_grad=True)
    with replace_compiled_kernels() as calls:
        first = step_calls(layer, x, calls)
        assert first
        assert tiling._compiled
        before = dict(tiling._compiled)
        assert describe(step_calls(layer, x, calls)) == describe(first)
        assert tiling._compiled == before


def test_code_for_aligned_pointers_is_not_run_for_others():
    layer = whitenorm.IterNorm(16)
    memory = torch.randn(2 * 16 * 64 + 1)
    with replace_compiled_kernels() as calls:
        step_calls(layer, memory[:-1].view(2, 16, 8, 8).requires_grad_(), calls)
        before = len(tiling._compiled)
        step_calls(layer, memory[1:].view(2, 16, 8, 8).requires_grad_(), calls)
        # The kernels that read x.
        assert len(tiling._compiled) == before + 4
