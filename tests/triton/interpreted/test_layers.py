"""Every layer by Triton's kernels, in its interpreter, against torch's in float64: outputs, gradients, statistics."""

import itertools
import os

import pytest
import torch

import whitenorm
from tests.helpers.cases import TOLERANCE, assert_close, channels_last, contiguous, gradients_by_name, randomise, twin

MIX = ("bw", "iw", "bn", "in", "ln")
METHODS = {
    "IterNorm": lambda k: whitenorm.IterNorm(2 * k, k),
    "BW sigma": lambda k: whitenorm.BatchWhitening(2 * k, k, population="covariance", momentum=None),
    "IW": lambda k: whitenorm.InstanceWhitening(2 * k, k),
    "GW": lambda k: whitenorm.GroupWhitening(k, 3 * k),
    "GW plain": lambda k: whitenorm.GroupWhitening(k, 2 * k, affine=False),
    "SW": lambda k: whitenorm.SwitchableWhitening(2 * k, k),
    "SW five": lambda k: whitenorm.SwitchableWhitening(2 * k, k, MIX, tie_weights=True),
}
# Each K and each number of positions; all pairs of them, for every method, where there is time for it.
SIZES = [(1, 7), (3, 49), (3, 1), (16, 200), (17, 7), (32, 49), (48, 7), (64, 49)]
ALL = os.environ.get("WHITENORM_ALL_CASES") == "1"
if ALL:
    SIZES = list(itertools.product([1, 3, 16, 17, 32, 48, 64], [1, 7, 49, 200]))
# One after the other, so that all methods meet all of them.
WAYS = list(itertools.product([contiguous, channels_last], [torch.float32, torch.bfloat16, torch.float16]))
CASES = [
    (name, k, positions, *WAYS[(i + 5 * j) % len(WAYS)])
    for i, name in enumerate(METHODS)
    for j, (k, positions) in enumerate(SIZES)
    # Of a single position a sample has no covariance. Every other size here, unless there is time for all.
    if (positions > 1 or not name.startswith(("IW", "GW"))) and (ALL or (i + j) % 2 == 0)
]


@pytest.fixture(autouse=True)
def _triton():
    whitenorm.set_kernels("triton")
    yield
    whitenorm.set_kernels("auto")


def by_torch(layer, x, grad):
    """The layer's copy in float64, run by torch's kernels: what it gives, and the copy."""
    exact = twin(layer)
    x = x.detach().double().requires_grad_()
    whitenorm.set_kernels("torch")
    y = exact(x)
    y.backward(grad.double())
    whitenorm.set_kernels("triton")
    return y, gradients_by_name(exact, x), dict(exact.named_buffers())


def compare(layer, x, launches):
    """Training forward and backward, then inference."""
    dtype = x.dtype
    grad = torch.randn(x.shape).to(dtype)
    y, gradients, buffers = by_torch(layer, x, grad)
    x = x.requires_grad_()
    actual = layer(x)
    actual.backward(grad)
    assert launches, "no kernel was launched"
    assert actual.dtype == dtype
    assert actual.stride() == x.stride() or x.shape[2] == 1
    assert_close(actual, y, dtype, "output")
    for name, gradient in gradients_by_name(layer, x).items():
        assert_close(gradient, gradients[name], dtype, name)
    for name, buffer in layer.named_buffers():
        assert_close(buffer, buffers[name], torch.float32 if dtype == torch.float32 else dtype, name)


def number_of_samples(name, k, positions):
    """Enough values to whiten by, up to what the interpreter has time for."""
    if positions == 1:
        return k + 3
    return min(max(2, 3 * k // positions + 1), 8) if name in ("IterNorm", "BW sigma") else 2


@pytest.mark.parametrize(("name", "k", "positions", "layout", "dtype"), CASES)
def test_training(name, k, positions, layout, dtype, launches):
    torch.manual_seed(k + positions)
    layer = randomise(METHODS[name](k))
    n = number_of_samples(name, k, positions)
    x = layout(torch.randn(n, layer.num_features, positions, 1) * 2 + 1).to(dtype)
    compare(layer, x, launches)


@pytest.mark.parametrize("name", ["IterNorm", "BW sigma"])
@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_inference(name, layout, launches):
    layer = randomise(METHODS[name](17)).eval()
    compare(layer, layout(torch.randn(3, 34, 7, 2)), launches)


@pytest.mark.parametrize(("features", "groups"), [(768, 24), (192, 12), (96, 4), (90, 15)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens(features, groups, dtype, launches):
    torch.manual_seed(0)
    layer = randomise(whitenorm.LayerWhitening(features, groups))
    compare(layer, torch.randn(3, 5, features).to(dtype), launches)
    # Forward, backward, and the sums of their parts over programs, which are torch's.
    assert len(launches) == 2


@pytest.mark.parametrize("solver", ["zca", "cholesky"])
def test_other_solvers_and_more_features(solver, launches):
    torch.manual_seed(0)
    compare(randomise(whitenorm.BatchWhitening(48, 16, solver)), torch.randn(4, 48, 5, 5), launches)
    compare(randomise(whitenorm.BatchWhitening(80, solver="newton")), torch.randn(8, 80, 4, 4), launches)


@pytest.mark.parametrize("name", ["IterNorm", "IW", "GW", "SW"])
def test_a_far_mean(name, launches):
    """A thousand deviations; what float32 can hold of x itself is a part of 1e-7 of the mean, 1e-4 of a deviation."""
    torch.manual_seed(0)
    layer = randomise(METHODS[name](16))
    x = torch.randn(4, layer.num_features, 7, 7) + 1000
    y, gradients, _ = by_torch(layer, x, torch.ones_like(x))
    actual = layer(x.requires_grad_())
    actual.backward(torch.ones_like(x))
    assert (actual - y).abs().max() <= 1e-3 * y.abs().max()
    assert (x.grad - gradients["input"]).abs().max() <= 1e-3 * max(1, gradients["input"].abs().max())


@pytest.mark.parametrize("name", ["BW sigma", "IW", "GW", "SW five"])
@pytest.mark.parametrize("kind", ["constant", "zero", "few"])
def test_degenerate_inputs_stay_finite(name, kind, launches):
    torch.manual_seed(0)
    layer = METHODS[name](16)
    x = torch.randn(2, layer.num_features, 2, 2)
    if kind == "constant":
        x = torch.full_like(x, 3.0)
    elif kind == "zero":
        x = torch.zeros_like(x)
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    tensors = [y, *gradients_by_name(layer, x).values(), *layer.buffers()]
    assert all(tensor.isfinite().all() for tensor in tensors)


def test_cases_that_use_the_torch_kernels(launches):
    """Masks, float64, second derivatives and transforms, with the same numbers as ever."""
    layer, x = whitenorm.IterNorm(6, 3), torch.randn(4, 6, 5)
    layer(x, mask=torch.ones(4, 5, dtype=torch.bool))
    whitenorm.IterNorm(6, 3).double()(x.double())
    torch.func.vmap(lambda v: whitenorm.functional.instance_whitening(v, group_size=3))(x.unsqueeze(0))
    assert not launches
    y = layer(x.requires_grad_())
    assert launches
    (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    whitenorm.set_kernels("torch")
    y = layer(x)
    (expected,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    (expected_second,) = torch.autograd.grad(expected.pow(2).sum(), x)
    assert_close(first, expected, torch.float32, "first")
    assert_close(second, expected_second, torch.float32, "second")


def test_checkpointing_autocast_and_batched_gradients(launches):
    layer, x = whitenorm.IterNorm(6, 3), torch.randn(4, 6, 5, requires_grad=True)
    expected = torch.autograd.grad(layer(x).pow(2).sum(), x)[0]
    again = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    assert_close(torch.autograd.grad(again.pow(2).sum(), x)[0], expected, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.float32
        assert layer(x.bfloat16()).dtype == torch.bfloat16
    rows = torch.eye(120).view(120, 4, 6, 5)[:3]
    y = layer(x)
    batched = torch.autograd.grad(y, x, rows, is_grads_batched=True, retain_graph=True)[0]
    single = torch.stack([torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in rows])
    assert (batched - single).abs().max() <= TOLERANCE[torch.float32]
