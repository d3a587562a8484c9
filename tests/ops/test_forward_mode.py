"""Forward-mode derivatives of every layer: torch.func.jvp, jacfwd, dual numbers, and both modes mixed."""

import copy

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, jacfwd, jacrev, jvp

import whitenorm
from tests.helpers.cases import (
    CHANNEL_LAYERS,
    SOLVERS,
    TOKEN_LAYERS,
    assert_close,
    channel_layers,
    randomise,
    token_layers,
)
from whitenorm.solvers import Newton, inverse_sqrt

DTYPE = torch.float64


def function_of_batches(cov):
    """A user's solver."""
    return torch.linalg.inv(torch.linalg.cholesky(cov))


def solver_id(solver):
    return getattr(solver, "__name__", str(solver))


def make(name, solver="newton", training=True):
    torch.manual_seed(0)
    layers, shape = (token_layers, (3, 8)) if name in TOKEN_LAYERS else (channel_layers, (3, 6, 2, 2))
    layer = randomise(layers(shape[1], solver, eps=1e-2, dtype=DTYPE)[name]).train(training)
    return layer, torch.randn(shape, dtype=DTYPE), torch.randn(shape, dtype=DTYPE)


def as_function(layer):
    """The layer as a function of input and parameters, with buffers of its own in every call."""
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}

    def function(x, *parameters):
        names = [name for name, _ in layer.named_parameters()]
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        return functional_call(layer, {**dict(zip(names, parameters, strict=True)), **own}, (x,))

    return function


def reference_tangent(layer, x, tangent, parameter_tangents):
    """Return the derivative by two gradients in reverse mode."""
    inputs = (x, *[parameter.detach() for parameter in layer.parameters()])
    return torch.autograd.functional.jvp(as_function(layer), inputs, (tangent, *parameter_tangents))[1]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", [*SOLVERS, Newton(0), function_of_batches], ids=solver_id)
@pytest.mark.parametrize("name", CHANNEL_LAYERS + TOKEN_LAYERS)
def test_tangents_of_every_layer(name, solver, training):
    layer, x, tangent = make(name, solver, training)
    parameters = tuple(parameter.detach() for parameter in layer.parameters())
    tangents = tuple(torch.randn_like(parameter) for parameter in parameters)
    expected = reference_tangent(layer, x, tangent, tangents)
    y, actual = jvp(as_function(layer), (x, *parameters), (tangent, *tangents))
    assert_close(actual, expected, DTYPE)
    assert_close(y, copy.deepcopy(layer)(x), DTYPE)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip((x, *parameters), (tangent, *tangents), strict=True)]
        assert_close(forward_ad.unpack_dual(as_function(layer)(*duals)).tangent, expected, DTYPE)


@pytest.mark.parametrize("gradients", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["bw", "bw-sigma", "sw5", "iw", "gw", "lw"])
def test_dual_numbers_leave_running_statistics_without_tangents(name, training, gradients):
    layer, x, tangent = make(name, training=training)
    plain = copy.deepcopy(layer)
    plain(x)
    expected = reference_tangent(layer, x, tangent, [torch.zeros_like(p) for p in layer.parameters()])
    with torch.set_grad_enabled(gradients), forward_ad.dual_level():
        y = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, tangent)))
        assert_close(y.tangent, expected, DTYPE)
        assert all(forward_ad.unpack_dual(buffer).tangent is None for buffer in layer.buffers())
    for buffer, other in zip(layer.buffers(), plain.buffers(), strict=True):
        assert_close(buffer, other, DTYPE)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["bw", "bw-sigma", "sw5", "iw", "gw", "lw"])
def test_jacobians(name, training):
    layer, x, _ = make(name, training=training)
    parameters = tuple(parameter.detach() for parameter in layer.parameters())
    function = as_function(layer)
    expected = torch.autograd.functional.jacobian(lambda x: function(x, *parameters), x)
    assert_close(jacfwd(function)(x, *parameters), expected, DTYPE)


# torch's own derivative of eigenvectors' tangents is NaN, so PCA has none in reverse over forward mode.
@pytest.mark.parametrize("solver", ["newton", "zca", "cholesky", "minimax", function_of_batches], ids=solver_id)
@pytest.mark.parametrize("name", ["bw", "sw5", "gw"])
def test_hessians_by_both_modes_in_both_orders(name, solver):
    layer, x, tangent = make(name, solver)
    parameters = tuple(parameter.detach() for parameter in layer.parameters())

    def loss(x):
        return as_function(layer)(x, *parameters).pow(3).sum()

    expected = torch.autograd.functional.hessian(loss, x)
    assert_close(jacfwd(jacrev(loss))(x), expected, DTYPE)
    assert_close(jacrev(jacfwd(loss))(x), expected, DTYPE)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), tangent)
        (gradient,) = torch.autograd.grad(loss(dual), dual)
        along = forward_ad.unpack_dual(gradient).tangent
    assert_close(along, torch.tensordot(expected, tangent, x.ndim), DTYPE)


def test_a_hessian_by_forward_mode_alone():
    layer, x, _ = make("bw", "zca")
    function, parameters = as_function(layer), tuple(parameter.detach() for parameter in layer.parameters())

    def loss(x):
        return function(x, *parameters).pow(3).sum()

    x = x[:2, ..., :1]
    assert_close(jacfwd(jacfwd(loss))(x), torch.autograd.functional.hessian(loss, x), DTYPE)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_matrices(solver):
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(2, 4, 4, dtype=DTYPE, generator=generator)
    cov, tangent = factor @ factor.mT + torch.eye(4), factor + factor.mT
    expected = torch.autograd.functional.jvp(lambda cov: inverse_sqrt(cov, solver), cov, tangent)[1]
    assert_close(jvp(lambda cov: inverse_sqrt(cov, solver), (cov,), (tangent,))[1], expected, DTYPE)


def test_tangents_of_repeated_and_floored_eigenvalues():
    """The derivative is that of the floored function, as in reverse mode."""
    cov = torch.diag(torch.tensor([0.0, 1.0, 2.0, 2.0], dtype=DTYPE))
    jacobian = torch.autograd.functional.jacobian(lambda cov: inverse_sqrt(cov, "zca"), cov)
    assert jacobian.isfinite().all()
    assert_close(jacfwd(lambda cov: inverse_sqrt(cov, "zca"))(cov), jacobian, DTYPE)


def test_a_plain_matrix():
    x, tangent = torch.randn(2, 9, 4, dtype=DTYPE)
    expected = torch.autograd.functional.jvp(whitenorm.functional.whiten, x, tangent)[1]
    assert_close(jvp(whitenorm.functional.whiten, (x,), (tangent,))[1], expected, DTYPE)
