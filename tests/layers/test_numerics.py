"""Finite in, finite out, and right: offsets, scales, degenerate inputs, half precision, NaN."""

import copy

import pytest
import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import CHANNEL_LAYERS, DEVICES, LAYOUTS, MIX, batch_layers, channel_layers, twin
from whitenorm.ops.statistics import channel_moments
from whitenorm.ops.torch import passes
from whitenorm.solvers import ZCA, Newton, inverse_sqrt

pytestmark = pytest.mark.usefixtures("kernels")

ALL_SOLVERS = ["newton", Newton(steps=40), "zca", "pca", "cholesky", "minimax"]


def run(layer, x):
    """Return y, the gradients of the input and the parameters for a fixed gradient of y, and this gradient."""
    x = x.detach().requires_grad_()
    y = layer(x)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    y.backward(grad)
    return [y, x.grad, *(parameter.grad for parameter in layer.parameters())], grad


def run_reference(layer, x, grad):
    """Run the float64 reference; exact whitening by a formula that is smooth at repeated eigenvalues."""
    naive = twin(layer)
    if naive.solver in (ZCA(), Newton(steps=40)):
        naive.solver = reference.inverse_root
    x64 = x.detach().double().cpu().requires_grad_()
    y = reference.forward(naive, x64)
    y.backward(grad.double().cpu())
    return [y, x64.grad, *(parameter.grad for parameter in naive.parameters())]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("pooled", [True, False])
def test_covariance_survives_an_offset_of_a_thousand_deviations(pooled, layout, device):
    torch.manual_seed(0)
    x = layout((torch.randn(16, 12, 20, 20) + 1000).to(device))
    cov = channel_moments(x, 6, pooled).cov.cpu().double()
    exact = channel_moments(x.double(), 6, pooled).cov.cpu()
    assert (cov - exact).abs().max() <= 1e-3 * exact.abs().max()


@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_layers_survive_an_offset_of_a_thousand_deviations(name):
    """Near 1000, float32 resolves 6e-5 of the deviation.

    That is 1e-3 of the differences between a sample's mean and the batch's, which is all the mixing logits see.
    """
    # With a seed of 0, the gradient of sw's mean_logits is 0.009, a difference of terms that float32 does not resolve.
    torch.manual_seed(2)
    layer = channel_layers(12)[name]
    x = torch.randn(8, 12, 10, 10) + 1000
    results, grad = run(layer, x)
    names = ["output", "input", *(name for name, _ in layer.named_parameters())]
    for what, actual, exact in zip(names, results, run_reference(layer, x, grad), strict=True):
        allowed = 3e-2 if "logits" in what else 1e-3
        assert (actual - exact).abs().max() <= allowed * exact.abs().max(), what


SCALES = [(1e-4, 1e-5), (1e-4, 1e-13), (1e4, 1e-5), (1e4, 1e3)]


@pytest.mark.parametrize(
    ("solver", "scale", "eps"),
    # Where ε makes all eigenvalues nearly equal, PCA's axes are arbitrary.
    [(solver, *scale) for solver in ALL_SOLVERS for scale in SCALES if solver != "pca" or scale != (1e-4, 1e-5)],
    ids=str,
)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_scales(name, solver, scale, eps):
    """With the default ε, and with one that follows the scale."""
    torch.manual_seed(0)
    layer = channel_layers(6, solver, eps=eps)[name]
    x = torch.randn(8, 6, 6, 6) * torch.linspace(1, 2, 6)[:, None, None] * scale
    results, grad = run(layer, x)
    for actual, exact in zip(results, run_reference(layer, x, grad), strict=True):
        assert actual.isfinite().all()
        assert (actual - exact).abs().max() <= 2e-3 * exact.abs().max()


DEGENERATE = {
    "all zero": lambda x: x * 0,
    "constant": lambda x: x * 0 + 3,
    "constant channels": lambda x: torch.cat([x[:, :3] * 0 + 5, x[:, 3:]], 1),
    "duplicate channels": lambda x: torch.cat([x[:, :3], x[:, :3]], 1),
    "fewer samples than features": lambda x: x[:1, :, :1, :2],
    "batch of one": lambda x: x[:1],
}


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_degenerate_inputs(name, solver, kind, eps):
    torch.manual_seed(0)
    layer = channel_layers(6, solver, eps=eps)[name]
    x = DEGENERATE[kind](torch.randn(4, 6, 4, 4))
    results, grad = run(layer, x)
    for actual in results:
        assert actual.isfinite().all()
    # PCA's axes are arbitrary where eigenvalues repeat, and its gradient has a pole there: finite is all there is.
    if solver != "pca" and eps == 1e-2:
        for actual, exact in zip(results, run_reference(layer, x, grad), strict=True):
            assert (actual - exact).abs().max() <= 2e-3 * max(1, exact.abs().max())


@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_tokens_of_zeros(solver):
    layer = whitenorm.LayerWhitening(12, 4, solver)
    results, _ = run(layer, torch.zeros(2, 3, 12))
    assert all(result.isfinite().all() for result in results)


def test_zero_eps_and_a_dead_channel():
    """Without ε the floors of the solvers are what is left."""
    for solver in ALL_SOLVERS:
        results, _ = run(whitenorm.BatchWhitening(4, solver=solver, eps=0.0), torch.zeros(8, 4))
        assert all(result.isfinite().all() for result in results), solver


@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_zero_eps_and_a_rank_deficient_batch(solver):
    """Directions below the precision of the largest eigenvalue are not amplified: W stays below 1/√(precision·λ)."""
    torch.manual_seed(0)
    x = torch.randn(500, 8) @ torch.randn(8, 32)
    layer = whitenorm.BatchWhitening(32, solver=solver, eps=0.0)
    results, _ = run(layer, x)
    assert all(result.isfinite().all() for result in results)
    largest = torch.linalg.eigvalsh(torch.cov(x.T)).max()
    assert layer.running_whitening.abs().max() <= 0.2 / (torch.finfo(torch.float32).eps * largest).sqrt()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_autocast(name, training, dtype, device):
    """Half inputs from a layer under autocast, and float32 inputs, are whitened as they are outside of it."""
    torch.manual_seed(0)
    layer = channel_layers(12, device=device)[name].train(training)
    for x in (torch.randn(4, 12, 5, 5, device=device), torch.randn(4, 12, 5, 5, device=device).to(dtype)):
        inside, outside = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = layer(outside)
        y.backward(torch.ones_like(y).cumsum(-1))
        with torch.autocast(device, dtype=dtype):
            y_inside = layer(inside)
            y_inside.backward(torch.ones_like(y).cumsum(-1))
        assert y_inside.dtype == x.dtype
        assert torch.equal(y_inside, y)
        assert torch.equal(inside.grad, outside.grad)


@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_half_layers(name):
    """A layer moved to bfloat16 as a whole trains and infers."""
    torch.manual_seed(0)
    layer = channel_layers(12)[name].to(torch.bfloat16)
    x = torch.randn(8, 12, 5, 5)
    for _ in range(3):
        results, _ = run(layer, x.to(torch.bfloat16))
        assert all(result.dtype == torch.bfloat16 and result.isfinite().all() for result in results)
    assert layer.eval()(x.to(torch.bfloat16)).isfinite().all()


@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_nan_shows(solver, population):
    """NaN appears in the output, the gradient and the running statistics, as with BatchNorm; nothing raises."""
    layer = whitenorm.BatchWhitening(4, 2, solver, population=population)
    x = torch.randn(8, 4)
    x[3, 1] = torch.nan
    results, _ = run(layer, x)
    assert results[0][:, :2].isnan().all()
    assert results[1][:, :2].isnan().all()
    assert results[0][:, 2:].isfinite().all()
    assert results[1][:, 2:].isfinite().all()
    assert layer.running_mean[1].isnan()
    assert layer._population()[1][0].isnan().any()
    assert layer._population()[1][1].isfinite().all()
    assert layer.eval()(torch.randn(8, 4))[:, :2].isnan().any()


def test_empty_batches_pass_at_inference():
    for name, layer in batch_layers(6).items():
        if name != "bw-untracked":
            assert layer.eval()(torch.randn(0, 6, 3, 3)).shape == (0, 6, 3, 3)
            assert layer(torch.randn(0, 6)).shape == (0, 6)
    for layer in (whitenorm.GroupWhitening(3, 6), whitenorm.SwitchableWhitening(6, 3, MIX).eval()):
        assert layer(torch.randn(0, 6, 3, 3)).shape == (0, 6, 3, 3)
    assert whitenorm.LayerWhitening(6, 3)(torch.randn(0, 5, 6)).shape == (0, 5, 6)


@pytest.mark.parametrize("solver", ["newton", "zca", "pca", "cholesky", "minimax"])
@pytest.mark.parametrize("scale", [1e9, 3e12, 1e15, 1e-9])
def test_gradients_at_the_ends_of_the_range(solver, scale):
    """Variances from 1e-18 to 1e30, whose power -3/2 is beyond float32's range."""
    torch.manual_seed(0)
    layer = whitenorm.BatchWhitening(6, solver=solver, eps=0.0)
    x = torch.randn(40, 6) * torch.linspace(1, 3, 6) * scale
    results, grad = run(layer, x)
    for actual, exact in zip(results, run_reference(layer, x, grad), strict=True):
        assert (actual - exact).abs().max() <= 1e-4 * exact.abs().max()


@pytest.mark.parametrize("solver", ["zca", "pca", "newton", "cholesky", "minimax"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_raises_nowhere(solver, bad):
    """Nor in its first or second derivative."""
    cov = torch.stack([torch.eye(3), torch.full((3, 3), bad)]).double().requires_grad_()
    whitening = inverse_sqrt(cov, solver)
    (gradient,) = torch.autograd.grad(whitening.sum(), cov, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), cov)
    assert whitening[0].isfinite().all()
    for tensor in (whitening, gradient, second):
        assert tensor[1].isnan().any()


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("layer", [whitenorm.BatchWhitening(4, 2), whitenorm.GroupWhitening(2, 4)], ids=str)
def test_a_parameter_at_nan_shows_in_its_own_channel(layer, name):
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        getattr(layer, name)[1] = torch.nan
    y = layer(torch.randn(8, 4, 5))
    assert y[:, 1].isnan().all()
    assert y[:, [0, 2, 3]].isfinite().all()
    assert all(buffer.isfinite().all() for buffer in layer.buffers())


FAR = [("newton", 8e-5), ("zca", 1.5e-3)]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("shape", [(256, 64), (16, 64, 8, 8)], ids=str)
@pytest.mark.parametrize(("solver", "allowed"), FAR)
def test_a_far_mean_costs_no_digits_of_the_map(solver, allowed, shape, training, monkeypatch):
    """At a thousand deviations, correlated channels: as exact as if x were centred before, also block by block."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", 20000)
    monkeypatch.setattr(passes, "FOLDING_BYTES", 1)
    torch.manual_seed(0)
    x = torch.randn(shape).movedim(1, -1) @ torch.randn(64, 64) / 8
    x = x.movedim(-1, 1).contiguous() + 1000
    layer = whitenorm.BatchWhitening(64, solver=solver, momentum=1.0, population="covariance")
    layer(x)
    results, grad = run(layer.train(training), x)
    actual, exact = results[0], run_reference(layer, x, grad)[0]
    assert (actual - exact).abs().max() <= allowed * exact.abs().max()


@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
def test_only_a_far_mean_is_taken_off_before(offset, monkeypatch):
    monkeypatch.setattr(passes, "FOLDING_BYTES", 1)
    x = torch.randn(1, 4, 100) + offset
    mean, cov, _ = channel_moments(x, 4)
    with torch.no_grad():
        assert passes.needs_centring(x, ZCA().solve(cov)[0], mean) == (offset == 1000)


@pytest.mark.parametrize("solver", ["newton", "zca", "minimax"])
def test_samples_far_from_the_population(solver):
    """The gradient through a sample's covariance is a map around the sample's mean, however far the mixed mean is."""
    torch.manual_seed(0)
    layer = whitenorm.SwitchableWhitening(12, 6, solver=solver).eval()
    x = torch.randn(4, 12, 5, 5) + 1000
    results, grad = run(layer, x)
    actual, exact = results[1], run_reference(layer, x, grad)[1]
    assert (actual - exact).abs().max() <= 1e-4 * exact.abs().max()


def test_a_far_mean_of_vectors_in_groups():
    """The dual is solved here, which has no mean."""
    torch.manual_seed(0)
    layer = whitenorm.GroupWhitening(16, 64)
    x = torch.randn(32, 64) + 1000
    results, grad = run(layer, x)
    for actual, exact in zip(results, run_reference(layer, x, grad), strict=True):
        assert (actual - exact).abs().max() <= 1.5e-4 * exact.abs().max()


def test_a_derived_solver_is_not_reduced_on_vectors():
    """The dual exists for Newton and ZCA, but not for subclasses, which may compute something else."""

    class Half(whitenorm.solvers.Newton):
        def solve(self, cov):
            whitening, residuals = super().solve(cov)
            return whitening / 2, residuals

    x = torch.randn(4, 16)
    for groups in (4, 8):
        half, whole = (whitenorm.GroupWhitening(groups, 16, solver)(x) for solver in (Half(), "newton"))
        assert torch.allclose(2 * half, whole, atol=1e-4)
