"""The matrix of a running covariance (BW_Σ) is solved for once, and again after every change of the covariance."""

import copy
import sys

import pytest
import torch

import whitenorm


def make_recording_layer(**options):
    """Return a layer, and a list that receives the covariances its solver is called with."""
    calls = []

    def solver(cov):
        calls.append(cov)
        return torch.linalg.inv(torch.linalg.cholesky(cov))

    return whitenorm.BatchWhitening(4, solver=solver, population="covariance", **options), calls


def infer_without_cache(layer, x):
    """Return the output of a copy of the layer, which has no cached matrix."""
    fresh = copy.deepcopy(layer)
    assert fresh._cached_matrix is None
    return fresh(x)


def test_solved_once():
    layer, calls = make_recording_layer()
    layer.eval()
    x = torch.randn(3, 4)
    first = layer(x)
    assert torch.equal(first, layer(x))
    assert torch.equal(first, layer.train().eval()(x))
    with torch.inference_mode():
        assert torch.equal(first, layer(x))
    assert len(calls) == 1


def multiply(layer):
    with torch.no_grad():
        layer.running_cov.mul_(4)


def write_through_data(layer):
    layer.running_cov.data.mul_(4)


def write_through_numpy(layer):
    array = layer.running_cov.numpy()
    array *= 4


def write_below_autograd(layer):
    """Write as collectives do, without incrementing the version counter."""
    with torch.autograd._unsafe_preserve_version_counter(layer.running_cov), torch.no_grad():
        layer.running_cov.mul_(4)


def load(layer):
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state["running_cov"] *= 4
    layer.load_state_dict(state)


def assign(layer):
    layer.running_cov = 4 * layer.running_cov


def swap(layer):
    """Swap the data, as averages of weights are swapped in for an evaluation."""
    layer.running_cov.data, original = 4 * layer.running_cov.data, layer.running_cov.data
    original.zero_()


def train(layer):
    layer.train()(torch.randn(8, 4))
    layer.eval()


def move(layer):
    layer.double().float()
    multiply(layer)


def change_eps(layer):
    layer.eps = 1.0


def change_solver(layer):
    layer.solver = whitenorm.solvers.Newton(2)


def recalibrate(layer):
    whitenorm.recalibrate_(layer, [torch.randn(64, 4) * 3], progress=False)


CHANGES = [multiply, write_through_data, write_through_numpy, write_below_autograd, load, assign, swap, train]
CHANGES += [move, change_eps, change_solver, recalibrate]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("grad", [True, False])
def test_no_change_goes_unnoticed(change, grad):
    """In eval mode throughout, where the layer is not notified of a change."""
    layer, _ = make_recording_layer()
    layer.train()(torch.randn(8, 4) * 2)
    layer.eval()
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(grad):
        before = layer(x)
        change(layer)
        after = layer(x)
        assert not torch.allclose(after, before, rtol=1e-2)
        assert torch.equal(after, infer_without_cache(layer, x))


def test_options_of_a_solver_may_be_changed_too():
    layer = whitenorm.IterNorm(4, population="covariance").eval()
    multiply(layer)
    layer.running_cov[0, 0, 0] = 9
    x = torch.randn(3, 4)
    before = layer(x)
    layer.solver.steps = 1
    assert not torch.allclose(layer(x), before)
    assert torch.equal(layer(x), infer_without_cache(layer, x))


def test_nan_is_not_hidden_by_the_cache():
    layer, _ = make_recording_layer()
    x = torch.randn(3, 4)
    expected = layer.eval()(x)
    layer.running_cov.data[0, 0, 0], original = torch.nan, layer.running_cov.clone()
    layer.solver = whitenorm.solvers.Newton()
    assert layer(x).isnan().any()
    layer.running_cov.data.copy_(original)
    assert layer(x).isfinite().all()
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_a_covariance_that_requires_a_gradient_gets_one():
    layer, _ = make_recording_layer()
    cov = (2 * torch.eye(4)[None]).requires_grad_()
    torch.func.functional_call(layer.eval(), {"running_cov": cov}, (torch.randn(3, 4),)).sum().backward()
    assert cov.grad.abs().sum() > 0


def test_gradients_after_inference_mode():
    layer, _ = make_recording_layer()
    layer.eval()
    with torch.inference_mode():
        layer(torch.randn(3, 4))
    x = torch.randn(3, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all()


def test_layers_made_in_inference_mode():
    with torch.inference_mode():
        layer, calls = make_recording_layer()
        layer.eval()(torch.randn(3, 4))
        x = torch.randn(3, 4)
        assert torch.equal(layer(x), infer_without_cache(layer, x))
    calls.clear()
    layer(x)
    assert not calls


def test_the_matrix_is_not_copied_or_stored():
    layer, _ = make_recording_layer()
    layer.eval()(torch.randn(3, 4))
    assert layer._cached_matrix is not None
    assert layer.__getstate__()["_cached_matrix"] is None
    assert "_cached_matrix" not in layer.state_dict()
    assert copy.deepcopy(layer)._cached_matrix is None


def test_fake_tensors_and_meta_tensors():
    """Tensors without data have no values to compare."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layer = whitenorm.IterNorm(4, population="covariance").eval()
        assert layer(torch.randn(3, 4)).shape == (3, 4)
        assert layer(torch.randn(3, 4)).shape == (3, 4)
    layer = whitenorm.IterNorm(4, population="covariance", device="meta").eval()
    assert layer(torch.randn(3, 4, device="meta")).is_meta


def run_interrupted(function, interrupt):
    """Call a function, and ``interrupt`` before every line of the layer's file, as another thread might."""

    def trace(frame, event, _):
        if event == "line":
            interrupt()
        return trace if frame.f_code.co_filename.endswith("layers/batch.py") else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return function()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("known", [True, False])
def test_threads_may_share_a_layer(known):
    """Another thread may call eval(), or infer with another covariance, at any moment."""
    layer = whitenorm.BatchWhitening(4, solver="cholesky", population="covariance").eval()
    x, cov, other = torch.randn(3, 4), torch.eye(4)[None], 4 * torch.eye(4)[None]
    layer.running_cov = cov
    expected = infer_without_cache(layer, x)
    if known:
        layer(x)
    turns = []

    def interrupt():
        turns.append(layer.eval())
        layer.running_cov = other
        layer(x)
        layer.running_cov = cov

    assert torch.equal(run_interrupted(lambda: layer(x), interrupt), expected)
    assert turns
    assert torch.equal(run_interrupted(lambda: layer(x), layer.eval), expected)
