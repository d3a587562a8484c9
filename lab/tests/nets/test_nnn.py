"""Natural neural networks: a refresh whitens the inputs of layers and keeps the network's function."""

import pytest
import torch
from torch import nn

from whitenorm.diagnostics import whiteness_error
from whitenorm_lab.digits import Split
from whitenorm_lab.fitting import fit
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.nets.nnn import NaturalLinear, NaturalNetwork


def network(data, **options):
    torch.manual_seed(0)
    layers = mlp(3, (1, 2, 3), hidden=[5, 4], norm=lambda width: nn.Identity(), activation=lambda width: nn.Tanh())
    return NaturalNetwork(layers.to(data.dtype), data, **{"damping": 1e-9, "interval": 4, **options})


def natural_layers(model):
    return [layer for layer in model.layers if isinstance(layer, NaturalLinear)]


def record_inputs(model, data):
    """Return the input of each natural layer's linear map."""
    inputs_by_layer = []
    handles = [
        layer.linear.register_forward_hook(lambda module, inputs, output: inputs_by_layer.append(inputs[0].detach()))
        for layer in natural_layers(model)
    ]
    with torch.no_grad():
        model(data)
    for handle in handles:
        handle.remove()
    return inputs_by_layer


@pytest.fixture
def data():
    return torch.randn(200, 1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_every_linear_layer_but_the_first_is_natural(data):
    model = network(data)
    assert isinstance(model.layers[1], nn.Linear)
    assert [layer.linear.in_features for layer in natural_layers(model)] == [5, 4]


def test_refresh_keeps_the_function(data):
    model = network(data)
    before = model.layers(data)
    weights = [layer.linear.weight.clone() for layer in natural_layers(model)]
    for _ in range(2):
        model.refresh()
        assert torch.allclose(model.layers(data), before, atol=1e-9)
        for layer, weight in zip(natural_layers(model), weights, strict=True):
            assert not torch.allclose(layer.linear.weight, weight, atol=1e-2)
        # Change the parameters, so that the second refresh starts elsewhere.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        before = model.layers(data)
        weights = [layer.linear.weight.clone() for layer in natural_layers(model)]


def test_inputs_are_white_after_a_refresh(data):
    model = network(data)
    assert min(map(whiteness_error, record_inputs(model, data))) > 0.3
    model.refresh()
    for inputs in record_inputs(model, data):
        assert whiteness_error(inputs) < 1e-6
        assert inputs.mean(0).abs().max() < 1e-9


def test_damping_shrinks_each_direction(data):
    model = network(data, damping=0.05)
    model.refresh()
    before, after = (
        torch.linalg.eigvalsh(torch.cov(x.T, correction=0))
        for x in (model.layers[:4](data), record_inputs(model, data)[0])
    )
    assert torch.allclose(after, before / (before + 0.05))


def test_a_step_is_gradient_descent_preconditioned_by_the_covariance(data):
    # For the weight W = V U, a step on V is preconditioned by U² = (Σ + εI)⁻¹.
    model = network(data, interval=100)
    model.refresh()
    layer = natural_layers(model)[0]
    weight = layer.linear.weight.detach() @ layer.whitening
    inputs = model.layers[:4](data).detach()
    labels = torch.arange(len(data)) % 3
    folded = weight.clone().requires_grad_()
    y = nn.functional.linear(inputs - layer.mean, folded, layer.linear.bias.detach())
    nn.functional.cross_entropy(model.layers[5:](y), labels).backward()
    nn.functional.cross_entropy(model.layers(data), labels).backward()
    moved = (layer.linear.weight - 0.1 * layer.linear.weight.grad) @ layer.whitening
    assert torch.allclose(moved, weight - 0.1 * folded.grad @ layer.whitening @ layer.whitening)


def test_refreshes_come_at_every_interval(data, monkeypatch):
    model = network(data)
    calls = []
    refresh = model.refresh
    monkeypatch.setattr(model, "refresh", lambda: (calls.append(model.steps), refresh()))
    fit(model, Split(data, torch.arange(len(data)) % 3), lr=0.1, steps=10)
    assert calls == [0, 4, 8]
    with torch.no_grad():
        model(data)
    model.eval()(data)
    assert model.steps == 10


def test_refresh_from_a_sample_of_the_data(data):
    model = network(data, samples=20)
    before = model.layers(data)
    model.refresh()
    assert torch.allclose(model.layers(data), before, atol=1e-9)
    # White on the rows that were drawn, only approximately on all rows.
    assert 1e-3 < whiteness_error(record_inputs(model, data)[0]) < 3


def test_refresh_does_not_change_a_diverged_network(data):
    model = network(data)
    with torch.no_grad():
        model.layers[1].weight.fill_(torch.nan)
    before = [layer.linear.weight.clone() for layer in natural_layers(model)]
    assert not model(data).isfinite().any()
    assert all(torch.equal(layer.linear.weight, old) for layer, old in zip(natural_layers(model), before, strict=True))
