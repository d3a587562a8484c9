"""The papers' formulations are what the benchmark says they are: the same outputs and gradients as the layers."""

import pytest
import torch
from cases import assert_close

import whitenorm
from benchmarks import papers

PAIRS = {
    "IterNorm": (papers.IterNorm(12, 6), whitenorm.IterNorm(12, 6)),
    "DBN": (papers.DBN(12, 6), whitenorm.DecorrelatedBatchNorm(12, 6)),
    "SW": (papers.SW(12, 6), whitenorm.SwitchableWhitening(12, 6)),
    "GW": (papers.GW(4, 12), whitenorm.GroupWhitening(4, 12)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_same_as_the_layer(name):
    torch.manual_seed(0)
    paper, layer = (module.double() for module in PAIRS[name])
    x = torch.randn(4, 12, 5, 5, dtype=torch.float64)
    grad = torch.randn_like(x)
    results = []
    for module in (paper, layer):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        y.backward(grad)
        parameters = dict(module.named_parameters())
        results.append([y, inputs.grad, parameters["weight"].grad, parameters["bias"].grad, module.eval()(x)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, torch.float64)
