"""Whole training steps by the six kernels, against autograd in float64."""

import pytest
import torch

from tests.triton.interpreted.kernel_reference import assert_same_step, method, moments, vector, view
from whitenorm.ops.types import Mixing

BATCH_STEPS = [
    # N, G, K, J, P; layout of x; layout of grad; dtype; affine
    ((3, 2, 1, 1, 7), "contiguous", "contiguous", torch.float32, "γβ"),
    ((3, 2, 3, 1, 49), "contiguous", "channels_last", torch.float32, "γ"),
    ((2, 1, 16, 1, 200), "channels_last", "channels_last", torch.bfloat16, "γβ"),
    ((40, 1, 17, 1, 1), "contiguous", "contiguous", torch.float32, "γβ"),
    ((2, 1, 32, 1, 49), "contiguous", "contiguous", torch.float16, "γβ"),
    ((3, 1, 48, 1, 7), "channels_last", "contiguous", torch.float32, ""),
    ((2, 1, 64, 1, 49), "contiguous", "contiguous", torch.float32, "γβ"),
    ((17, 1, 4, 1, 6), "contiguous", "contiguous", torch.float32, "β"),
]


def every_other_split(cases):
    return [(*case, index % 2 == 1) for index, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("shape", "layout", "grad_layout", "dtype", "affine", "split"), every_other_split(BATCH_STEPS), indirect=["split"]
)
def test_batch_whitening(shape, layout, grad_layout, dtype, affine, split):
    x, grad = view(shape, layout, dtype), view(shape, grad_layout, dtype, seed=1)
    weight, bias = (vector(shape[1:4], seed) if letter in affine else None for seed, letter in enumerate("γβ"))
    assert_same_step(x, grad, method(("bw",)), weight, bias)


SAMPLE_STEPS = [
    ((2, 2, 3, 1, 49), "contiguous", "contiguous", torch.float32, "γβ"),
    ((1, 1, 17, 1, 200), "channels_last", "contiguous", torch.float32, "γ"),
    ((2, 1, 32, 1, 7), "contiguous", "contiguous", torch.bfloat16, ""),
    # Across groups.
    ((2, 1, 3, 4, 49), "contiguous", "contiguous", torch.float32, "γβ"),
    ((2, 1, 16, 3, 7), "channels_last", "contiguous", torch.float32, "γ"),
    ((2, 1, 4, 20, 7), "channels_last", "channels_last", torch.float32, "γβ"),
    ((3, 1, 16, 20, 1), "contiguous", "contiguous", torch.bfloat16, "γβ"),
    ((2, 1, 64, 2, 49), "contiguous", "channels_last", torch.float16, "γβ"),
    ((1, 1, 5, 3, 70), "contiguous", "contiguous", torch.float32, ""),
    ((2, 1, 5, 3, 7), "channels_last", "contiguous", torch.float32, "β"),
    ((1, 1, 48, 2, 49), "contiguous", "contiguous", torch.float32, "γβ"),
    ((2, 1, 1, 3, 7), "contiguous", "contiguous", torch.float32, "γβ"),
]


@pytest.mark.parametrize(
    ("shape", "layout", "grad_layout", "dtype", "affine", "split"), every_other_split(SAMPLE_STEPS), indirect=["split"]
)
def test_sample_whitening(shape, layout, grad_layout, dtype, affine, split):
    x, grad = view(shape, layout, dtype), view(shape, grad_layout, dtype, seed=1)
    weight, bias = (vector(shape[1:4], seed) if letter in affine else None for seed, letter in enumerate("γβ"))
    assert_same_step(x, grad, method(("iw",)), weight, bias)


MIXES = [
    (("bw", "iw"), (2, 2, 3, 1, 7), "contiguous", torch.float32, "γβ"),
    (("bw", "iw", "bn", "in", "ln"), (2, 2, 16, 1, 49), "channels_last", torch.float32, "γβ"),
    (("ln", "bn", "iw"), (2, 1, 17, 1, 49), "contiguous", torch.bfloat16, "γ"),
    (("iw", "ln"), (2, 2, 3, 1, 7), "contiguous", torch.float32, ""),
    (("in", "bw"), (2, 1, 5, 1, 7), "contiguous", torch.float32, "γβ"),
    (("bw", "bn"), (3, 1, 3, 1, 7), "contiguous", torch.float32, "γβ"),
    (("ln",), (2, 2, 3, 1, 7), "contiguous", torch.float32, "γβ"),
    (("in", "ln", "bn"), (2, 1, 64, 1, 49), "contiguous", torch.float32, "γβ"),
]


@pytest.mark.parametrize(
    ("statistics", "shape", "layout", "dtype", "affine", "constant"),
    [(*case, False) for case in MIXES] + [(*MIXES[index], True) for index in (0, 2, 5)],
)
def test_switchable_whitening(statistics, shape, layout, dtype, affine, constant):
    x, grad = view(shape, layout, dtype), view(shape, layout, dtype, seed=1)
    weight, bias = (vector(shape[1:4], seed) if letter in affine else None for seed, letter in enumerate("γβ"))
    mixing = Mixing(vector(len(statistics), 2), vector(len(statistics), 3))
    population = moments(view(shape, seed=4), pooled=True) if constant else None
    assert_same_step(x, grad, method(statistics), weight, bias, mixing, population)
