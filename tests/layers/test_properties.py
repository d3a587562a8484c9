"""Properties that hold for any shape, group size, dtype and scale."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whitenorm
from tests.helpers.cases import TOLERANCE
from whitenorm.functional import batch_whitening, group_whitening, instance_whitening, whiten
from whitenorm.ops.check import divisors

settings.register_profile("whitenorm", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("whitenorm")

SOLVER = st.sampled_from(["newton", "zca", "pca", "cholesky", "minimax"])
DTYPE = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
SCALE = st.sampled_from([1e-4, 1e-2, 1.0, 1e2, 1e4])
SEED = st.integers(0, 2**16)


@st.composite
def inputs(draw, min_positions=1, dtypes=DTYPE):
    """(N, C, ...), of any rank and layout, with more than one value a channel, and a divisor of C."""
    channels = draw(st.integers(1, 12))
    positions = draw(st.lists(st.integers(1, 5), min_size=0 if min_positions == 1 else 1, max_size=3))
    if math.prod(positions) < min_positions:
        positions = [*positions[:-1], min_positions]
    samples = draw(st.integers(1 if math.prod(positions) > 1 else 2, 6))
    dtype, scale = draw(dtypes), draw(SCALE)
    generator = torch.Generator().manual_seed(draw(SEED))
    x = torch.randn(samples, channels, *positions, generator=generator) * scale
    if draw(st.booleans()):
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.to(dtype), draw(st.sampled_from(divisors(channels)))


def check(y, x):
    """Finite, and like the input."""
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.isfinite().all()


def backward(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    y.float().sum().backward()
    return y, x.grad


@pytest.mark.usefixtures("kernels")
@given(inputs(), SOLVER)
def test_batch_whitening_is_finite(drawn, solver):
    x, group_size = drawn
    y, grad = backward(lambda x: batch_whitening(x, training=True, group_size=group_size, solver=solver), x)
    check(y, x)
    check(grad, x)


@pytest.mark.usefixtures("kernels")
@given(inputs(min_positions=2), SOLVER)
def test_instance_whitening_is_finite(drawn, solver):
    x, group_size = drawn
    y, grad = backward(lambda x: instance_whitening(x, group_size=group_size, solver=solver), x)
    check(y, x)
    check(grad, x)


@pytest.mark.usefixtures("kernels")
@given(inputs(min_positions=2), SOLVER)
def test_group_whitening_is_finite(drawn, solver):
    x, num_groups = drawn
    y, grad = backward(lambda x: group_whitening(x, num_groups, solver=solver), x)
    check(y, x)
    check(grad, x)


@pytest.mark.usefixtures("kernels")
@given(inputs(min_positions=2), SOLVER, st.sets(st.sampled_from(["bw", "iw", "bn", "in", "ln"]), min_size=1))
def test_switchable_whitening_is_finite(drawn, solver, statistics):
    x, group_size = drawn
    layer = whitenorm.SwitchableWhitening(x.shape[1], group_size, tuple(sorted(statistics)), solver=solver)
    y, grad = backward(layer, x)
    check(y, x)
    check(grad, x)
    check(layer.eval()(x), x)


@given(inputs(dtypes=st.just(torch.float64)), SOLVER)
def test_output_is_centred_and_at_most_white(drawn, solver):
    """Newton and ε may leave a variance below one; nothing may leave it above."""
    x, group_size = drawn
    y = batch_whitening(x, training=True, group_size=group_size, solver=solver, eps=1e-3)
    columns = y.movedim(1, 0).flatten(1)
    assert columns.mean(1).abs().max() < 1e-7
    for group in columns.split(group_size):
        values = torch.linalg.eigvalsh(group @ group.T / group.shape[1])
        assert values.max() <= 1 + 1e-7


@given(inputs(dtypes=st.just(torch.float64)), SOLVER, SEED)
def test_samples_may_come_in_any_order(drawn, solver, seed):
    x, group_size = drawn
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    options = {"training": True, "group_size": group_size, "solver": solver, "eps": 1e-2}
    a, b = batch_whitening(x, **options)[order], batch_whitening(x[order], **options)
    if solver != "pca":
        assert (a - b).abs().max() < 1e-6


@given(inputs(dtypes=st.just(torch.float64)), st.sampled_from(["newton", "zca", "minimax"]), SEED)
def test_zca_and_newton_turn_with_the_data(drawn, solver, seed):
    """W(QΣQᵀ) = Q·W(Σ)·Qᵀ: no axis is special, which is what PCA and Cholesky lack."""
    x, _ = drawn
    channels = x.shape[1]
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(channels, channels, generator=generator).double())[0]

    def turn(tensor):
        return (tensor.movedim(1, -1) @ q.T).movedim(-1, 1)

    options = {"training": True, "solver": solver, "eps": 1e-2}
    assert (turn(batch_whitening(x, **options)) - batch_whitening(turn(x), **options)).abs().max() < 1e-6


@pytest.mark.usefixtures("kernels")
@given(st.integers(2, 40), st.integers(1, 12), SOLVER, DTYPE, SEED)
def test_whiten(samples, features, solver, dtype, seed):
    x = torch.randn(samples, features, generator=torch.Generator().manual_seed(seed)).to(dtype)
    y = whiten(x, solver=solver)
    check(y, x)
    assert y.double().mean(0).abs().max() <= TOLERANCE[dtype] * y.double().abs().max()


@pytest.mark.usefixtures("kernels")
@given(inputs(dtypes=st.just(torch.float32)), SOLVER)
def test_inference_after_one_full_update_is_the_training_map(drawn, solver):
    """With momentum 1 the population is the last batch, so both modes give the same output."""
    x, group_size = drawn
    layer = whitenorm.BatchWhitening(x.shape[1], group_size, solver, eps=1e-2, momentum=1.0)
    trained = layer(x)
    inferred = layer.eval()(x)
    assert (trained - inferred).abs().max() <= 1e-4 * max(1, trained.abs().max())
