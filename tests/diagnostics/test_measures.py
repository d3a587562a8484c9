"""The papers' measures, each against an independent computation."""

import math

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm import functional
from whitenorm.diagnostics import (
    condition_number,
    constraint_number,
    correlation,
    diversity,
    feasible_range,
    fisher_condition_number,
    flops,
    jacobian_spectrum,
    kernels_used,
    measured_constraint_number,
    saved_bytes,
    spectrum,
    stochastic_disturbance,
    whiteness_error,
)
from whitenorm.ops import fixed_map
from whitenorm.ops.native.library import load_library


def features_with_spectrum(values, n=64):
    """Return features whose covariance has exactly these eigenvalues."""
    d = len(values)
    white = torch.linalg.qr(torch.randn(n, d + 1, dtype=torch.float64).index_fill(1, torch.tensor([0]), 1.0))[0][:, 1:]
    rotation = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]
    return white * math.sqrt(n) @ torch.diag(torch.tensor(values, dtype=torch.float64).sqrt()) @ rotation + 5


def test_condition_numbers_of_a_known_spectrum():
    x = features_with_spectrum([100.0, 10.0, 4.0, 1.0, 0.5])
    assert torch.allclose(spectrum(x), torch.tensor([100.0, 10.0, 4.0, 1.0, 0.5], dtype=torch.float64))
    assert condition_number(x) == pytest.approx(200)
    assert condition_number(x, 80) == pytest.approx(100)
    assert condition_number(x, 50) == pytest.approx(25)
    assert condition_number(x, 20) == pytest.approx(1)
    images = x.reshape(8, 8, 5).movedim(2, 1)
    assert condition_number(images) == pytest.approx(200)


def test_singular_features_have_an_infinite_condition_number():
    x = torch.randn(20, 3)
    assert condition_number(torch.cat([x, x[:, :1]], 1)) == math.inf
    assert condition_number(torch.cat([x, x[:, :1]], 1), 75) < 100
    assert condition_number(torch.randn(3, 5)) == math.inf


def test_correlation_and_whiteness_against_numpy():
    import numpy

    x = torch.randn(200, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    matrix = numpy.abs(numpy.corrcoef(x.numpy().T))
    assert correlation(x) == pytest.approx((matrix.sum() - 6) / 30)
    cov = numpy.cov(x.numpy().T, bias=True)
    assert whiteness_error(x) == pytest.approx(numpy.linalg.norm(cov - numpy.eye(6)) / math.sqrt(6))
    assert correlation(torch.tensor([[1.0, 2.0], [3.0, 2.0]])) == 0
    assert correlation(torch.randn(5, 1)) == 0


def test_measures_of_whitened_features():
    x = torch.randn(512, 8) @ torch.randn(8, 8)
    y = whitenorm.DecorrelatedBatchNorm(8, 8, eps=0, affine=False)(x)
    assert condition_number(y) < 1.01
    assert correlation(y) < 1e-3
    assert whiteness_error(y) < 1e-2


@pytest.mark.parametrize(
    ("method", "features", "batch", "groups"),
    [
        ("bn", 5, 7, None),
        ("bn", 3, 2, None),
        ("bw", 4, 9, None),
        ("bw", 3, 6, None),
        ("gn", 12, 3, 2),
        ("gn", 12, 2, 4),
        ("gw", 12, 2, 2),
        ("gw", 24, 3, 3),
        ("gw", 24, 1, 4),
    ],
)
def test_constraint_numbers_equal_ranks(method, features, batch, groups):
    measured = measured_constraint_number(method, features, batch, groups)
    assert measured == constraint_number(method, features, batch, groups)


def test_table_1_of_group_whitening():
    assert constraint_number("bn", 64, 32, data=320) == 2 * 64 * 10
    assert constraint_number("bw", 64, 32, data=320) == 64 * 67 // 2 * 10
    assert constraint_number("gn", 64, 32, 8, data=320) == 2 * 8 * 320
    assert constraint_number("gw", 64, 32, 8, data=320) == 320 * 8 * 11 // 2


@pytest.mark.parametrize("features", [2, 8, 64, 256, 1000])
def test_feasible_ranges_end_where_equations_outnumber_values(features):
    for method in ("gn", "gw"):
        most = feasible_range(method, features).most
        equations = (lambda g: 2 * g) if method == "gn" else (lambda g: g * (g + 3) // 2)
        assert equations(most) <= features < equations(most + 1)
    least = feasible_range("bw", features).least
    assert constraint_number("bw", features, least) <= least * features
    assert constraint_number("bw", features, least) > (least - 1) * features
    assert feasible_range("bn", features) == ("batch", 2, None)


def test_diversity_of_uniform_and_of_constrained_features():
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(200_000, 2, generator=generator) * 2 - 1
    assert diversity(uniform, 10) == pytest.approx(math.log(100), abs=1e-3)
    signs = torch.sign(torch.randn(10_000, 3, generator=generator))
    assert diversity(signs, 1000) == pytest.approx(math.log(4), abs=1e-3)
    assert diversity(torch.zeros(10, 2)) == 0


def test_diversity_against_numpy():
    import numpy

    x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = (x / x.abs().amax(0)).numpy()
    counts = numpy.histogram2d(scaled[:, 0], scaled[:, 1], bins=30, range=[[-1, 1], [-1, 1]])[0].ravel()
    shares = counts[counts > 0] / counts.sum()
    assert diversity(x, 30) == pytest.approx(-(shares * numpy.log(shares)).sum())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), whitenorm.IterNorm(4, 2), whitenorm.DecorrelatedBatchNorm(4)])
def test_disturbance_against_the_layer_itself(norm):
    """Take the statistics of each batch with the layer in training mode, then apply them to x in eval mode."""
    data = torch.randn(50, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64)
    norm = norm.double()
    result = stochastic_disturbance(norm, data, 8, samples=5, repeats=40, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    x = data[torch.randperm(50, generator=generator)[:5]]
    outputs = []
    for portion in (16, 16, 8):
        for indices in torch.randint(50, (portion, 8), generator=generator):
            norm.momentum = 1.0
            norm.train()(data[indices])
            if isinstance(norm, nn.BatchNorm1d):
                # BatchNorm records the unbiased variance.
                norm.running_var *= 7 / 8
            outputs.append(norm.eval()(x))
    outputs = torch.stack(outputs)
    expected = (outputs - outputs.mean(0)).norm(dim=-1).mean(0)
    assert torch.allclose(result.samples, expected)
    assert result.operation == pytest.approx(expected.mean().item())


def test_disturbance_orders_methods_as_in_the_paper():
    """Full whitening is noisier than IterNorm, which is noisier than BatchNorm; small batches are noisier."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(4000, 32, generator=generator)
    norms = [nn.BatchNorm1d(32), whitenorm.IterNorm(32), whitenorm.DecorrelatedBatchNorm(32, 32)]
    values = [stochastic_disturbance(norm, data, 128, 50, 50, generator=generator).operation for norm in norms]
    assert values == sorted(values)
    assert stochastic_disturbance(norms[0], data, 32, 50, 50, generator=generator).operation > values[0]


def test_fisher_of_a_softmax_against_its_definition():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    data = torch.randn(30, 3, dtype=torch.float64)
    layer = model[2]

    def log_probabilities(parameters, x):
        return torch.func.functional_call(layer, parameters, x).log_softmax(-1)

    inputs = model[:2](data).detach()
    parameters = {"weight": layer.weight.detach(), "bias": layer.bias.detach()}
    fisher = 0
    for x in inputs:
        jacobian = torch.func.jacrev(log_probabilities)(parameters, x)
        rows = torch.cat([jacobian["weight"], jacobian["bias"].unsqueeze(-1)], -1).flatten(1)
        fisher = fisher + rows.T @ torch.diag(log_probabilities(parameters, x).exp()) @ rows / len(inputs)
    values = torch.linalg.eigvalsh(fisher)
    # Adding a constant to all logits changes nothing: five directions carry no information.
    assert values[:5].abs().max() < 1e-12
    assert fisher_condition_number(model, data, "2") == pytest.approx((values[-1] / values[5]).item())


def test_fisher_of_a_linear_output_is_the_second_moment_of_its_inputs():
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    data = torch.randn(50, 3, dtype=torch.float64)
    expected = torch.linalg.cond(data.T @ data).item()
    assert fisher_condition_number(model, data, "0", softmax=False) == pytest.approx(expected)


def test_jacobian_spectrum_against_autograd():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), whitenorm.DecorrelatedBatchNorm(3, 3), nn.ReLU()).double()
    net.append(nn.Sequential(nn.Flatten(), nn.Linear(48, 5).double()))
    data = torch.randn(20, 2, 4, 4, dtype=torch.float64)
    whitenorm.recalibrate_(net, [data])
    # Each part keeps its own mode.
    net[2].eval()
    before = net[1].running_mean.clone()
    spectra = jacobian_spectrum(net, data[:3])
    assert [part.training for part in net] == [True, True, False, True]
    assert torch.equal(net[1].running_mean, before)
    net.eval()
    for values, x in zip(spectra, data, strict=False):
        jacobian = torch.autograd.functional.jacobian(lambda x: net(x.unsqueeze(0))[0], x).flatten(1)
        assert torch.allclose(values, torch.linalg.svdvals(jacobian))


def test_whitening_between_linear_layers_is_an_isometry():
    """A linear layer that maps white features to white features is orthogonal: DBN, section 3.5."""
    torch.manual_seed(0)
    layers = [(nn.Linear(6, 6), whitenorm.DecorrelatedBatchNorm(6, 6, eps=0, affine=False)) for _ in range(4)]
    net = nn.Sequential(*[part for pair in layers for part in pair]).double()
    data = torch.randn(500, 6, dtype=torch.float64)
    whitenorm.recalibrate_(net, [data])
    values = jacobian_spectrum(net[2:], net[:2].eval()(data[:2]))
    assert torch.allclose(values, torch.ones_like(values), atol=1e-6)


@pytest.mark.usefixtures("torch_kernels")
def test_costs_of_a_layer():
    layer = whitenorm.IterNorm(16, 8).eval()
    x = torch.randn(4, 16, 6, 6)
    assert flops(layer, x) == 2 * x.numel() * 8
    layer.train()
    before = layer.running_mean.clone()
    assert flops(layer, x) > 4 * x.numel() * 8
    # The input, and per group two matrices, a mean and a trace.
    assert saved_bytes(layer, x) == x.nbytes + 4 * (2 * 2 * 8 * 8 + 16 + 2)
    assert saved_bytes(nn.ReLU(), x) == x.nbytes
    assert torch.equal(layer.running_mean, before)
    assert layer.num_batches_tracked == 0


def test_bad_input_is_a_clear_error():
    with pytest.raises(ValueError, match=r"NaN or infinity in 1 of 3 rows"):
        condition_number(torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="at least 2 values"):
        condition_number(torch.randn(1, 4))
    with pytest.raises(ValueError, match="floating-point features"):
        correlation(torch.zeros(3, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="expected percent"):
        condition_number(torch.randn(5, 2), 0)
    with pytest.raises(ValueError, match="expected method"):
        constraint_number("ln", 4, 4)
    with pytest.raises(ValueError, match="number of groups"):
        constraint_number("gw", 4, 4)
    with pytest.raises(ValueError, match="at least two features"):
        diversity(torch.randn(5, 1))
    with pytest.raises(ValueError, match="batch_size from 2"):
        stochastic_disturbance(nn.BatchNorm1d(2), torch.randn(5, 2), 6)
    with pytest.raises(ValueError, match="data of 3 features"):
        stochastic_disturbance(nn.BatchNorm1d(3), torch.randn(5, 2), 2)
    with pytest.raises(ValueError, match="floating-point samples"):
        jacobian_spectrum(nn.ReLU(), torch.randn(5))
    with pytest.raises(ValueError, match="a row of outputs for each of 5 samples"):
        jacobian_spectrum(nn.Flatten(0), torch.randn(5, 2))
    with pytest.raises(ValueError, match="it has: 0"):
        fisher_condition_number(nn.Sequential(nn.Linear(2, 2)), torch.randn(5, 2), "fc")


def test_hooks_are_removed_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError):
        fisher_condition_number(model, torch.randn(5, 3), "0")
    assert not model[0]._forward_hooks


def test_constant_features_correlate_with_nothing():
    x = torch.full((1000, 2), 0.1, dtype=torch.float64) * torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert correlation(x) == 0
    assert correlation(1e-3 * torch.randn(1000, 1, dtype=torch.float64) + x) == pytest.approx(1)


def test_kernels_used():
    """Those of training and inference, after which the choice is as before."""
    native = load_library().description if load_library().functions is not None else "torch"
    layers = [
        whitenorm.IterNorm(16),
        whitenorm.GroupWhitening(4, 16),
        whitenorm.InstanceWhitening(16, 4),
        whitenorm.SwitchableWhitening(16),
        whitenorm.IterNorm(16).eval(),
    ]
    x = torch.randn(4, 16, 6, 6)
    for layer in layers:
        before = functional.choose_kernels, fixed_map.choose_kernels
        assert kernels_used(lambda layer=layer: layer(x)) == (native,)
        assert (functional.choose_kernels, fixed_map.choose_kernels) == before
    assert kernels_used(lambda: [layer(x.double()) for layer in map(nn.Module.double, layers)]) == ("torch",)
    assert kernels_used(lambda: nn.BatchNorm2d(16)(x)) == ()
