"""The kernels that pass over x: sizes, layouts, offsets, and the number of launches."""

import pytest
import torch

from tests.triton.interpreted.kernel_reference import (
    TOLERANCE,
    assert_close,
    assert_same_step,
    column,
    method,
    multiply,
    step,
    vector,
    view,
)
from tests.triton.interpreted.kernel_reference import moments as reference_moments
from whitenorm.ops.triton.apply import apply
from whitenorm.ops.triton.input_gradient import input_gradient
from whitenorm.ops.triton.map_gradients import map_gradients
from whitenorm.ops.triton.moments import moments
from whitenorm.ops.types import AffineGrad, Mixing

PASSES = [
    # N, G, K, J, P; layout; dtype; one matrix per sample
    ((2, 1, 80, 1, 49), "contiguous", torch.float32, False),
    ((2, 1, 80, 1, 7), "channels_last", torch.bfloat16, True),
    ((1, 1, 128, 2, 7), "contiguous", torch.float32, True),
    ((3, 2, 3, 1, 7), "channels_last", torch.float16, False),
    ((40, 2, 3, 1, 1), "contiguous", torch.float32, False),
    ((2, 1, 4, 3, 7), "channels_last", torch.float32, False),
]


def gaussian(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "layout", "dtype", "per_sample"), PASSES)
def test_moments(shape, layout, dtype, per_sample, split):
    x = view(shape, layout, dtype)
    statistics = moments(x, per_sample, True)
    assert (statistics.sample is not None) == per_sample
    for got, pooled in ((statistics.sample, False), (statistics.batch, True)):
        if got is not None:
            expected = reference_moments(x.double(), pooled)
            assert_close(got.mean, expected.mean, 1e-5, "mean")
            assert_close(got.cov, expected.cov, 1e-5, "covariance")
            assert got.num_values == expected.num_values


@pytest.mark.parametrize(("shape", "layout", "dtype", "per_sample"), PASSES)
def test_apply(shape, layout, dtype, per_sample):
    samples, groups, features, channels_per_feature, _ = shape
    x = view(shape, layout, dtype)
    matrices = samples if per_sample else 1
    whitening, mean = gaussian((matrices, groups, features, features), 1), gaussian((matrices, groups, features), 2)
    weight, bias = (vector((groups, features, channels_per_feature), seed) for seed in (3, 4))
    y = apply(x, whitening, mean, weight, bias, torch.empty_like(x))
    centred = multiply(whitening.double(), x.double() - column(mean))
    assert_close(y, centred * weight.unsqueeze(-1) + bias.unsqueeze(-1), TOLERANCE[dtype])
    # Into an output of other strides.
    y = apply(x, whitening, None, None, None, torch.empty(x.shape, dtype=dtype))
    assert_close(y, multiply(whitening.double(), x.double()), TOLERANCE[dtype])


@pytest.mark.parametrize(("shape", "layout", "dtype", "per_sample"), PASSES)
def test_map_gradients(shape, layout, dtype, per_sample, split):
    samples, groups, features, channels_per_feature, _ = shape
    x, grad = view(shape, layout, dtype), view(shape, "contiguous", dtype, seed=1)
    matrices = samples if per_sample else 1
    whitening, mean = gaussian((matrices, groups, features, features), 1), gaussian((matrices, groups, features), 2)
    weight = vector((groups, features, channels_per_feature), 3)
    got = map_gradients(grad, x, whitening, mean, weight, weight)
    grad, centred = grad.double(), x.double() - column(mean)
    if channels_per_feature > 1:
        weighted = grad * multiply(whitening.double(), centred)
        assert_close(got.weight, weighted.sum((0, -1)), 1e-5, "weight")
        assert_close(got.bias, grad.sum((0, -1)), 1e-5, "bias")
        grad = grad * weight.unsqueeze(-1)
    matrix, offset = grad.flatten(3) @ centred.flatten(3).mT, grad.sum((3, 4))
    if not per_sample:
        matrix, offset = matrix.sum(0, keepdim=True), offset.sum(0, keepdim=True)
    assert_close(got.matrix, matrix, 1e-5, "matrix")
    assert_close(got.offset, offset, 1e-5, "offset")


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "per_sample", "batch"),
    [(*case, index % 2 == 0) for index, case in enumerate(PASSES)] + [(*case, not case[3]) for case in PASSES[3:5]],
)
def test_input_gradient(shape, layout, dtype, per_sample, batch):
    samples, groups, features, channels_per_feature, _ = shape
    x, grad = view(shape, layout, dtype), view(shape, "contiguous", dtype, seed=1)
    matrices = samples if per_sample else 1
    whitening = gaussian((matrices, groups, features, features), 1)
    weight = vector((groups, features, channels_per_feature), 3) if batch else None
    expected = multiply(whitening.double().mT, grad.double() * (1 if weight is None else weight.unsqueeze(-1)))
    parts = []
    for is_used, count, num_values in ((per_sample, samples, 7), (batch, 1, torch.tensor(9.0, dtype=torch.float64))):
        if not is_used:
            parts.append(None)
            continue
        size = (count, groups, features)
        vectors = gaussian(size, 6 + count), gaussian(size, 7 + count)
        affine = AffineGrad(gaussian((*size, features), 5 + count), *vectors, num_values)
        centred = x.double() - column(affine.mean)
        expected = expected + (2 * multiply(affine.matrix.double(), centred) + column(affine.offset)) / float(
            num_values
        )
        parts.append(affine)
    dx = input_gradient(grad, x, whitening, weight, *parts, torch.empty(x.shape, dtype=dtype))
    assert_close(dx, expected, TOLERANCE[dtype])


def test_moments_of_a_large_offset(split):
    x = view((3, 1, 5, 1, 70)) + 1000
    for got, pooled in zip(moments(x, True, True), (False, True), strict=True):
        assert_close(got.cov, reference_moments(x.double(), pooled).cov, 1e-3)
    assert_close(moments(x, False, True).batch.cov, reference_moments(x.double(), True).cov, 1e-3)


@pytest.mark.parametrize("statistics", [("bw",), ("iw",), ("bw", "iw", "ln")])
def test_step_of_a_large_offset(statistics):
    x = view((2, 1, 5, 1, 70)) + 1000
    mixing = Mixing(vector(3, 2), vector(3, 3)) if len(statistics) > 1 else None
    assert_same_step(x, view(x.shape, seed=1), method(statistics), mixing=mixing, tolerance=5e-3)


@pytest.mark.parametrize("statistics", [("bw",), ("iw",)])
def test_constant_channels(statistics):
    x = view((2, 1, 4, 1, 49))
    x[:, :, 1:3] = 5.0
    assert_same_step(x, view(x.shape, seed=1), method(statistics))


@pytest.mark.parametrize("statistics", [("bw",), ("iw",)])
def test_fewer_values_than_features(statistics):
    shape = (2, 1, 32, 1, 7)
    assert_same_step(view(shape), view(shape, seed=1), method(statistics))


@pytest.mark.parametrize(
    ("shape", "statistics", "count", "split"),
    [
        ((2, 1, 4, 1, 49), ("bw",), 7, True),
        ((2, 1, 4, 1, 49), ("bw",), 6, False),
        ((2, 1, 4, 2, 49), ("iw",), 7, True),
        ((2, 1, 4, 2, 49), ("iw",), 6, False),
        ((2, 1, 4, 1, 49), ("bw", "iw", "ln"), 9, True),
        ((2, 1, 4, 1, 7), ("bw", "iw", "ln"), 8, False),
    ],
    indirect=["split"],
)
def test_launches(shape, statistics, count, launches, split):
    """Torch also sums map gradients that are split, and the gradients of γ and β of several matrices."""
    weight = vector(shape[1:4], 4)
    mixing = Mixing(vector(3, 2), vector(3, 3)) if len(statistics) > 1 else None
    step(view(shape), view(shape, seed=1), method(statistics), weight, weight, mixing)
    assert len(launches) == count, launches
