"""Numerical behaviour of the C++ kernels at the ends of their range: offsets, NaN, constants, singular matrices."""

import pytest
import torch

import whitenorm
from whitenorm.ops import dispatch
from whitenorm.ops.native import steps
from whitenorm.solvers import Newton


def measure_error(actual, exact):
    return (actual.double() - exact).abs().max().item()


@pytest.mark.parametrize("pooled", [True, False])
# The last two are summed in many parts.
@pytest.mark.parametrize(
    "shape", [(16, 2, 6, 1, 400), (5, 3, 17, 1, 49), (1, 1, 64, 1, 5000), (64, 1, 8, 1, 1024)], ids=str
)
def test_moments_at_an_offset_of_a_thousand_deviations(shape, pooled):
    """As accurate as torch's, over several inputs, because the error of one is a matter of luck."""
    errors = {"torch": torch.zeros(2), "native": torch.zeros(2)}
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(shape) + 1000
        exact = dispatch.TORCH.moments(x.double(), not pooled, pooled)
        exact = exact.batch if pooled else exact.sample
        for name, kernels in (("torch", dispatch.TORCH), ("native", steps)):
            actual = kernels.moments(x, not pooled, pooled)
            actual = actual.batch if pooled else actual.sample
            error = [measure_error(actual.mean, exact.mean), measure_error(actual.cov, exact.cov)]
            errors[name] = torch.maximum(errors[name], torch.tensor(error))
    assert (errors["native"] <= 1.5 * errors["torch"]).all(), errors


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_values_reach_their_own_sample_and_group_alone(bad, memory_format):
    """Also where other samples come before and after it in the same thread's memory."""
    for layer in (whitenorm.InstanceWhitening(12, 3), whitenorm.GroupWhitening(6, 12)):
        x = torch.randn(7, 12, 5, 5).to(memory_format=memory_format)
        x[3, 4, 2, 2] = bad
        affected = torch.zeros(7, 12, dtype=torch.bool)
        affected[3, 3:6] = True
        if isinstance(layer, whitenorm.GroupWhitening):
            affected[3] = True
        x.requires_grad_()
        y = layer(x)
        y.backward(torch.randn_like(y))
        for result in (y, x.grad):
            assert result[affected].isnan().all()
            assert result[~affected].isfinite().all()


@pytest.mark.parametrize("shape", [(7, 12, 5, 5), (50, 12)], ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_values_reach_their_own_group_of_a_batch_alone(bad, shape):
    layer = whitenorm.BatchWhitening(12, 3, population="covariance")
    x = torch.randn(shape)
    x[3, 4] = bad
    x.requires_grad_()
    y = layer(x)
    y.backward(torch.randn_like(y))
    others = [0, 1, 2, 6, 7, 8, 9, 10, 11]
    for result in (y, x.grad):
        assert result[:, 3:6].isnan().all()
        assert result[:, others].isfinite().all()
    for buffer in (layer.running_mean.view(4, 3), layer.running_cov):
        assert not buffer[1].isfinite().all()
        assert buffer[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("features", [3, 8, 12, 64])
def test_a_bad_matrix_leaves_others_alone(features, bad):
    """Matrices are solved in the same memory, one after another."""
    solver = steps._NativeNewton(5)
    factor = torch.randn(5, features, 2 * features)
    cov = factor @ factor.mT / features
    exact = Newton(5)
    expected = exact.solve(cov)[0]
    grad = torch.randn_like(cov)
    expected_grad = exact.backward(grad, cov, expected, ())
    cov[2, 0, 0] = bad
    whitening = solver.solve(cov)[0]
    grad_cov = solver.backward(grad, cov, whitening, ())
    for actual, correct in ((whitening, expected), (grad_cov, expected_grad)):
        assert actual[2].isnan().all()
        torch.testing.assert_close(actual[[0, 1, 3, 4]], correct[[0, 1, 3, 4]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e4, -1e-20])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("num_steps", [0, 1, 5, steps.MOST_STEPS])
def test_constant_inputs_are_finite(num_steps, eps, value):
    solver = Newton(num_steps)
    layers = [
        whitenorm.BatchWhitening(12, 4, solver, eps=eps),
        whitenorm.InstanceWhitening(12, 4, solver, eps=eps),
        whitenorm.GroupWhitening(4, 12, solver, eps=eps),
        whitenorm.SwitchableWhitening(12, 4, solver=solver, eps=eps),
    ]
    for layer in layers:
        x = torch.full((4, 12, 5, 5), value, requires_grad=True)
        y = layer(x)
        y.backward(torch.randn_like(y))
        assert y.isfinite().all()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("num_steps", range(steps.MOST_STEPS + 1))
@pytest.mark.parametrize("features", [2, 8, 17, 64])
def test_singular_covariances_are_finite(features, num_steps):
    """Of any rank, also at the ends of float32's range, where the trace to the power 3/2 is beyond it."""
    torch.manual_seed(0)
    solver, exact = steps._NativeNewton(num_steps), Newton(num_steps)
    for rank in (1, features // 2, features - 1):
        for scale in (1e-18, 1.0, 1e18):
            factor = torch.randn(3, features, rank)
            cov = factor @ factor.mT * scale
            cov[1] = 0
            grad = torch.randn_like(cov)
            whitening = solver.solve(cov)[0]
            grad_cov = solver.backward(grad, cov, whitening, ())
            assert whitening.isfinite().all()
            assert grad_cov.isfinite().all()
            # No direction is amplified more than by torch's iteration.
            assert whitening.abs().max() <= 1.01 * exact.solve(cov)[0].abs().max()
