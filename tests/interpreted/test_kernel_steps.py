"""Whole training steps by the six kernels, against autograd in float64."""

import pytest
import torch
from kernel_reference import assert_same_step, method, vector, view

BATCH_STEPS = [
    # N, G, K, J, P; layout of x; layout of grad; dtype; affine
    ((3, 2, 1, 1, 7), "contiguous", "contiguous", torch.float32, "γβ"),
    ((4, 2, 3, 1, 49), "contiguous", "channels_last", torch.float32, "γ"),
    ((2, 1, 16, 1, 200), "channels_last", "channels_last", torch.bfloat16, "γβ"),
    ((40, 1, 17, 1, 1), "contiguous", "contiguous", torch.float32, "γβ"),
    ((2, 1, 32, 1, 49), "contiguous", "contiguous", torch.float16, "γβ"),
    ((3, 1, 48, 1, 7), "channels_last", "contiguous", torch.float32, ""),
    ((2, 1, 64, 1, 49), "contiguous", "contiguous", torch.float32, "γβ"),
    ((17, 1, 4, 1, 6), "contiguous", "contiguous", torch.float32, "β"),
]


@pytest.mark.parametrize(("shape", "layout", "grad_layout", "dtype", "affine"), BATCH_STEPS)
def test_batch_whitening(shape, layout, grad_layout, dtype, affine, split):
    x, grad = view(shape, layout, dtype), view(shape, grad_layout, dtype, seed=1)
    weight, bias = (vector(shape[1:4], seed) if letter in affine else None for seed, letter in enumerate("γβ"))
    assert_same_step(x, grad, method(("bw",)), weight, bias)
