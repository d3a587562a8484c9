"""Gradients by finite differences, to first and second order, and against the papers' written-out backward passes."""

import pytest
import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import (
    CHANNEL_LAYERS,
    SOLVERS,
    TOKEN_LAYERS,
    assert_close,
    channel_layers,
    randomise,
    token_layers,
)
from whitenorm.solvers import Newton

# Jacobians along random directions, in a tenth of the time of all their entries. A fault of one entry is less in a sum
# of many, so tolerances are a thousandth of gradcheck's own: a derivative of Newton's that is 0.3 % off then fails 28
# tests of batch and group whitening, and by entries 30. The solvers themselves are checked by entries in test_solvers.
PROJECTED = {"fast_mode": True, "rtol": 1e-6, "atol": 1e-8}


def as_function(layer):
    """The layer as a function of its input and parameters, for gradcheck."""
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    return function, [parameter.detach().requires_grad_() for parameter in layer.parameters()]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_gradcheck(name, solver, training):
    torch.manual_seed(0)
    layer = randomise(channel_layers(6, solver, eps=1e-3, dtype=torch.float64)[name]).train(training)
    function, parameters = as_function(layer)
    x = torch.randn(3, 6, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, *parameters), **PROJECTED)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("name", TOKEN_LAYERS)
def test_gradcheck_of_tokens(name, solver):
    torch.manual_seed(0)
    function, parameters = as_function(randomise(token_layers(8, solver, eps=1e-3, dtype=torch.float64)[name]))
    x = torch.randn(2, 2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, *parameters), **PROJECTED)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
@pytest.mark.parametrize("name", ["bw-grouped", "bw-sigma", "sw5", "iw", "gw"])
def test_double_backward(name, solver, training):
    torch.manual_seed(0)
    layer = randomise(channel_layers(6, solver, eps=1e-2, dtype=torch.float64)[name]).train(training)
    function, parameters = as_function(layer)
    x = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(function, (x, *parameters), **PROJECTED)


def test_a_users_function_as_solver():
    layer = whitenorm.BatchWhitening(4, solver=reference.cholesky, dtype=torch.float64)
    builtin = whitenorm.BatchWhitening(4, solver="cholesky", dtype=torch.float64)
    x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    function, parameters = as_function(layer)
    assert torch.autograd.gradcheck(function, (x, *parameters), **PROJECTED)
    assert_close(layer(x), builtin(x), torch.float64)


def test_a_users_solver_that_reads_one_triangle():
    """Its gradient is not symmetric; the covariance's is."""

    def solver(cov):
        return torch.diag_embed(cov[..., 0, :].abs() + 1)

    function, parameters = as_function(whitenorm.BatchWhitening(4, solver=solver, dtype=torch.float64))
    x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, *parameters), **PROJECTED)


def run_without_affine(x, solver, **options):
    """Return y, a random gradient of y, and the gradient of x for it, by a layer without γ and β."""
    layer = whitenorm.BatchWhitening(x.shape[1], solver=solver, affine=False, dtype=x.dtype, **options)
    x = x.clone().requires_grad_()
    y = layer(x)
    grad = torch.randn_like(y)
    y.backward(grad)
    return y.detach(), grad, x.grad


def test_dbn_equation_6():
    """The simplified backward pass of DBN, for a 4×m matrix; the paper's K has poles, so distinct eigenvalues."""
    torch.manual_seed(0)
    x = torch.randn(20, 4, dtype=torch.float64)
    _, grad, grad_x = run_without_affine(x, "zca", eps=1e-3)
    mean, cov = reference.mean_and_cov(x.T)
    values, vectors = torch.linalg.eigh(cov + 1e-3 * torch.eye(4))
    tilde = (x - mean) @ vectors * values**-0.5
    grad_tilde = grad @ vectors
    f = grad_tilde.mean(0)
    f_c = grad_tilde.T @ tilde / len(x)
    k = torch.where(torch.eye(4, dtype=bool), 0, 1 / (values[:, None] - values[None, :]))
    root = values.sqrt()
    inner = k.T * (values[:, None] * f_c.T + root[:, None] * f_c * root[None, :])
    s = inner + inner.T
    m = torch.diag(torch.diag(f_c))
    expected = (grad_tilde - f + tilde @ s - tilde @ m) * values**-0.5 @ vectors.T
    assert_close(grad_x, expected, torch.float64)


def test_iternorm_algorithm_2():
    """Equations 6 and 7 of IterNorm, with the uncoupled iterates."""
    torch.manual_seed(0)
    steps, eps = 5, 1e-3
    x = torch.randn(20, 4, dtype=torch.float64)
    _, grad, grad_x = run_without_affine(x, Newton(steps), eps=eps)
    mean, cov = reference.mean_and_cov(x.T)
    centred = (x - mean).T
    cov = cov + eps * torch.eye(4)
    grad_cov = newton_backward(cov, steps, grad.T @ centred.T)
    whitening = reference.newton(cov, steps)
    f = grad.T.mean(1, keepdim=True)
    expected = whitening @ (grad.T - f) + (grad_cov + grad_cov.T) @ centred / len(x)
    assert_close(grad_x, expected.T, torch.float64)


def test_gw_algorithm_2():
    """The backward pass of GW, one sample at a time."""
    torch.manual_seed(0)
    steps, eps = 5, 1e-3
    layer = whitenorm.GroupWhitening(3, 12, Newton(steps), eps, affine=False, dtype=torch.float64)
    x = torch.randn(2, 12, 4, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x)
    layer(x).backward(grad)
    for sample, grad_sample, grad_x in zip(x.detach(), grad, x.grad, strict=True):
        groups, grad_groups = sample.reshape(3, -1), grad_sample.reshape(3, -1)
        mean, cov = reference.mean_and_cov(groups)
        cov = cov + eps * torch.eye(3)
        centred, c = groups - mean[:, None], groups.shape[1]
        grad_cov = newton_backward(cov, steps, grad_groups @ centred.T)
        f = grad_groups.mean(1, keepdim=True)
        expected = reference.newton(cov, steps) @ (grad_groups - f) + (grad_cov + grad_cov.T) @ centred / c
        assert_close(grad_x.reshape(3, -1), expected, torch.float64)


def newton_backward(cov, steps, grad_whitening):
    """IterNorm, equations 6 and 7 (GW, equations 18 and 19)."""
    trace = torch.trace(cov)
    scaled = cov / trace
    p = [torch.eye(len(cov), dtype=cov.dtype)]
    for _ in range(steps):
        p.append(0.5 * (3 * p[-1] - p[-1] @ p[-1] @ p[-1] @ scaled))
    grad_p = grad_whitening / trace.sqrt()
    grad_scaled = torch.zeros_like(cov)
    for k in range(steps, 0, -1):
        q = p[k - 1]
        grad_scaled = grad_scaled - 0.5 * (q @ q @ q).T @ grad_p
        grad_p = (
            1.5 * grad_p
            - 0.5 * grad_p @ (q @ q @ scaled).T
            - 0.5 * (q @ q).T @ grad_p @ scaled.T
            - 0.5 * q.T @ grad_p @ (q @ scaled).T
        )
    identity = torch.eye(len(cov), dtype=cov.dtype)
    return (
        grad_scaled / trace
        - torch.trace(grad_scaled.T @ cov) / trace**2 * identity
        - torch.trace(grad_whitening.T @ p[-1]) / (2 * trace**1.5) * identity
    )


def test_sw_equations_5_to_10():
    """The ZCA backward of SW's supplement, for the gradient that reaches the mixing weights of the covariance."""
    torch.manual_seed(0)
    layer = whitenorm.SwitchableWhitening(3, 3, solver="zca", eps=1e-3, affine=False, dtype=torch.float64)
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    y = layer(x)
    grad = torch.randn_like(y)
    y.backward(grad)
    batch_cov = reference.mean_and_cov(reference.unroll(x))
    expected = torch.zeros(2, dtype=torch.float64)
    for sample, grad_sample in zip(x, grad, strict=True):
        own = reference.mean_and_cov(sample)
        mean = (batch_cov[0] + own[0]) / 2
        values, d = torch.linalg.eigh((batch_cov[1] + own[1]) / 2 + 1e-3 * torch.eye(3))
        v = torch.diag(values**-0.5) @ d.T
        centred = sample - mean[:, None]
        grad_tilde = d.T @ grad_sample
        grad_v = grad_tilde @ centred.T
        grad_values = torch.diag(grad_v @ d) * (-0.5 * values**-1.5)
        grad_d = grad_v.T @ torch.diag(values**-0.5) + grad_sample @ (v @ centred).T
        k = torch.where(torch.eye(3, dtype=bool), 0, 1 / (values[:, None] - values[None, :]))
        grad_cov = d @ (k.T * (d.T @ grad_d) + torch.diag(grad_values)) @ d.T
        expected += torch.stack([(grad_cov * batch_cov[1]).sum(), (grad_cov * own[1]).sum()])
    # Through the softmax at equal weights.
    expected = 0.5 * (expected - expected.mean())
    assert_close(layer.cov_logits.grad, expected, torch.float64)


@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_eval_differentiates_the_fixed_map(population):
    torch.manual_seed(0)
    layer = randomise(whitenorm.BatchWhitening(6, 3, population=population, dtype=torch.float64)).eval()
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(layer, x)
    # Nothing leaks between samples or positions, and every position has the same matrix.
    per_position = jacobian[0, :, 0, 0, :, 0]
    for n in range(4):
        for position in range(3):
            block = jacobian[n, :, position].clone()
            assert_close(block[:, n, :, position], per_position, torch.float64)
            block[:, n, :, position] = 0
            assert (block == 0).all()
