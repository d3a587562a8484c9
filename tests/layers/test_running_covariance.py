"""The matrix of a running covariance (BW_Σ) is always that of the present one, and not solved for without need."""

import copy
import sys

import pytest
import torch

import whitenorm


def counted(**options):
    """A layer, and the covariances its solver was called with."""
    calls = []

    def solver(cov):
        calls.append(cov)
        return torch.linalg.inv(torch.linalg.cholesky(cov))

    return whitenorm.BatchWhitening(4, solver=solver, population="covariance", **options), calls


def naive(layer, x):
    """By a layer that has solved nothing yet."""
    fresh = copy.deepcopy(layer)
    assert fresh._cached_matrix is None
    return fresh(x)


def test_solved_once():
    layer, calls = counted()
    layer.eval()
    x = torch.randn(3, 4)
    first = layer(x)
    assert torch.equal(first, layer(x))
    assert torch.equal(first, layer.train().eval()(x))
    with torch.inference_mode():
        assert torch.equal(first, layer(x))
    assert len(calls) == 1


def multiplied(layer):
    with torch.no_grad():
        layer.running_cov.mul_(4)


def through_data(layer):
    layer.running_cov.data.mul_(4)


def through_numpy(layer):
    array = layer.running_cov.numpy()
    array *= 4


def below_autograd(layer):
    """As collectives write, without counting a version."""
    with torch.autograd._unsafe_preserve_version_counter(layer.running_cov), torch.no_grad():
        layer.running_cov.mul_(4)


def loaded(layer):
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state["running_cov"] *= 4
    layer.load_state_dict(state)


def assigned(layer):
    layer.running_cov = 4 * layer.running_cov


def swapped(layer):
    """As an average of weights is swapped in for an evaluation."""
    layer.running_cov.data, kept = 4 * layer.running_cov.data, layer.running_cov.data
    kept.zero_()


def trained(layer):
    layer.train()(torch.randn(8, 4))
    layer.eval()


def moved(layer):
    layer.double().float()
    multiplied(layer)


def another_eps(layer):
    layer.eps = 1.0


def another_solver(layer):
    layer.solver = whitenorm.solvers.Newton(2)


def recalibrated(layer):
    whitenorm.recalibrate_(layer, [torch.randn(64, 4) * 3], progress=False)


CHANGES = [multiplied, through_data, through_numpy, below_autograd, loaded, assigned, swapped, trained]
CHANGES += [moved, another_eps, another_solver, recalibrated]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("grad", [True, False])
def test_no_change_goes_unnoticed(change, grad):
    """In eval mode throughout, where nothing tells the layer of a change."""
    layer, _ = counted()
    layer.train()(torch.randn(8, 4) * 2)
    layer.eval()
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(grad):
        before = layer(x)
        change(layer)
        after = layer(x)
        assert not torch.allclose(after, before, rtol=1e-2)
        assert torch.equal(after, naive(layer, x))


def test_options_of_a_solver_may_be_changed_too():
    layer = whitenorm.IterNorm(4, population="covariance").eval()
    multiplied(layer)
    layer.running_cov[0, 0, 0] = 9
    x = torch.randn(3, 4)
    before = layer(x)
    layer.solver.steps = 1
    assert not torch.allclose(layer(x), before)
    assert torch.equal(layer(x), naive(layer, x))


def test_nan_is_not_kept_back():
    layer, _ = counted()
    x = torch.randn(3, 4)
    expected = layer.eval()(x)
    layer.running_cov.data[0, 0, 0], kept = torch.nan, layer.running_cov.clone()
    layer.solver = whitenorm.solvers.Newton()
    assert layer(x).isnan().any()
    layer.running_cov.data.copy_(kept)
    assert layer(x).isfinite().all()
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_a_covariance_that_asks_for_a_gradient_gets_one():
    layer, _ = counted()
    cov = (2 * torch.eye(4)[None]).requires_grad_()
    torch.func.functional_call(layer.eval(), {"running_cov": cov}, (torch.randn(3, 4),)).sum().backward()
    assert cov.grad.abs().sum() > 0


def test_inference_mode_does_not_poison_it():
    layer, _ = counted()
    layer.eval()
    with torch.inference_mode():
        layer(torch.randn(3, 4))
    x = torch.randn(3, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all()


def test_layers_made_in_inference_mode():
    with torch.inference_mode():
        layer, calls = counted()
        layer.eval()(torch.randn(3, 4))
        x = torch.randn(3, 4)
        assert torch.equal(layer(x), naive(layer, x))
    calls.clear()
    layer(x)
    assert not calls


def test_it_is_not_copied_or_stored():
    layer, _ = counted()
    layer.eval()(torch.randn(3, 4))
    assert layer._cached_matrix is not None
    assert layer.__getstate__()["_cached_matrix"] is None
    assert "_cached_matrix" not in layer.state_dict()
    assert copy.deepcopy(layer)._cached_matrix is None


def test_fake_tensors_and_meta_tensors():
    """What estimates memory without data has no values to compare."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layer = whitenorm.IterNorm(4, population="covariance").eval()
        assert layer(torch.randn(3, 4)).shape == (3, 4)
        assert layer(torch.randn(3, 4)).shape == (3, 4)
    layer = whitenorm.IterNorm(4, population="covariance", device="meta").eval()
    assert layer(torch.randn(3, 4, device="meta")).is_meta


def interrupted(function, interrupt):
    """A call in which another thread gets its turn before every line of the layer's own file."""

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
    """Another may call eval(), and infer with another covariance, at any moment."""
    layer = whitenorm.BatchWhitening(4, solver="cholesky", population="covariance").eval()
    x, cov, other = torch.randn(3, 4), torch.eye(4)[None], 4 * torch.eye(4)[None]
    layer.running_cov = cov
    expected = naive(layer, x)
    if known:
        layer(x)
    turns = []

    def interrupt():
        turns.append(layer.eval())
        layer.running_cov = other
        layer(x)
        layer.running_cov = cov

    assert torch.equal(interrupted(lambda: layer(x), interrupt), expected)
    assert turns
    assert torch.equal(interrupted(lambda: layer(x), layer.eval), expected)
