"""The compiled kernels in the emulator: they agree with float64, in whatever order warps and programs run."""

import itertools

import pytest
import torch

from tests.helpers.sampling import mark_slow
from tests.triton.emulator.launches import emulate
from tests.triton.interpreted.kernel_reference import (
    TOLERANCE,
    assert_close,
    assert_same_step,
    method,
    moments,
    reference_step,
    vector,
    view,
)
from whitenorm.ops.triton import per_sample
from whitenorm.ops.triton.solve import solve
from whitenorm.ops.types import STATISTICS, Mixing, Running, Statistics

FEATURES = (3, 16, 17, 32, 64)
# Each layout in float32 and in one of the 16-bit types.
WAYS = (
    ("contiguous", torch.float32),
    ("contiguous", torch.bfloat16),
    ("channels_last", torch.float32),
    ("channels_last", torch.float16),
)
CASES = list(itertools.product(FEATURES, WAYS))
# Two ways each, in turn, for what needs longer.
FEW_CASES = [case for index, case in enumerate(CASES) if (index + index // 4) % 2 == 0]


def parameters(groups, features, channels=1):
    return tuple(vector((groups, features, channels), seed) for seed in (2, 3))


def inputs(shape, way):
    layout, dtype = way
    return view(shape, layout, dtype), view(shape, layout, dtype, seed=1)


@pytest.mark.parametrize(("features", "way"), mark_slow(CASES, sample=[(16, WAYS[1])]))
def test_statistics_of_the_batch(features, way, monkeypatch):
    """Run a step of IterNorm, whose sums are split among programs."""
    monkeypatch.setattr("whitenorm.ops.triton.tiling.LEAST_TILES", 1)
    x, grad = inputs((3, 2, features, 1, 40), way)
    with emulate() as emulation:
        assert_same_step(x, grad, method(("bw",)), *parameters(2, features))
    assert "_combine_moments" in emulation.instructions
    assert not emulation.faults


@pytest.mark.parametrize(("features", "way"), mark_slow(FEW_CASES))
def test_mixed_statistics(features, way):
    """Run a step of Switchable Whitening with all statistics."""
    x, grad = inputs((2, 1, features, 1, 49), way)
    mixing = Mixing(vector(len(STATISTICS), 4), vector(len(STATISTICS), 5))
    with emulate() as emulation:
        assert_same_step(x, grad, method(STATISTICS), *parameters(1, features), mixing)
    assert "_mixing_backward" in emulation.instructions
    assert not emulation.faults


@pytest.mark.parametrize(("features", "way"), mark_slow(FEW_CASES))
def test_features_of_several_channels(features, way):
    """Run a step of Group Whitening, whose γ and β vary within a feature."""
    x, grad = inputs((2, 1, features, 3, 16), way)
    with emulate() as emulation:
        assert_same_step(x, grad, method(("iw",)), *parameters(1, features, 3))
    assert not emulation.faults


@pytest.mark.parametrize(("features", "way"), mark_slow([case for case in FEW_CASES if case[0] <= 32]))
def test_samples(features, way, monkeypatch):
    """Run the fused kernels, with several samples per program."""
    monkeypatch.setattr("whitenorm.ops.triton.per_sample._count_programs", lambda device, tile: 2)
    x, grad = inputs((3, 1, features, 40, 1), way)
    weight, bias = parameters(1, features, 40)
    y, dx = torch.empty_like(x), torch.empty_like(x)
    with emulate() as emulation:
        assert per_sample.is_supported(x.shape, 5)
        saved = per_sample.whiten_samples(x, weight, bias, 1e-3, 5, y)
        grads = per_sample.whiten_samples_backward(grad, x, weight, bias, 1e-3, 5, saved, dx)
    expected = reference_step(x, grad, method(("iw",)), weight, bias)
    for got, wanted in zip((y, dx, *grads), expected, strict=False):
        assert_close(got, wanted, TOLERANCE[got.dtype])
    assert not emulation.faults


@pytest.mark.parametrize("features", mark_slow(FEATURES))
def test_running_statistics(features):
    mean, matrix = vector(features, 4), vector((1, features, features), 5)
    running = Running(mean.clone(), matrix.clone(), "whitening", torch.tensor(0.25), torch.tensor(3))
    batch = moments(view((2, 1, features, 1, 49)), pooled=True)
    with emulate() as emulation:
        solution = solve(Statistics(None, batch), method(("bw",)), None, running)
    assert_close(running.mean, mean.lerp(batch.mean.flatten(), 0.25).double(), 1e-6)
    assert_close(running.matrix, matrix.lerp(solution.whitening[0], 0.25).double(), 1e-6)
    assert running.counter == 4
    assert not emulation.faults
