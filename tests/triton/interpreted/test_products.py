"""The products that run in the interpreter are those that the roofline model counts."""

import pytest
import torch

import whitenorm
from benchmarks.roofline.products import count_distinct_flops
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops.launches import record_launches

LAYERS = {
    "batch": (lambda: whitenorm.IterNorm(24, 24), (3, 24, 5, 5)),
    "several blocks of features": (lambda: whitenorm.IterNorm(72, 72), (3, 72, 3, 3)),
    "channels with γ": (lambda: whitenorm.GroupWhitening(16, 32), (2, 32, 9, 9)),
    "switchable": (lambda: whitenorm.SwitchableWhitening(16, 16), (2, 16, 5, 5)),
    "tokens": (lambda: whitenorm.LayerWhitening(96), (3, 96)),
    "tokens without parameters": (lambda: whitenorm.LayerWhitening(96, elementwise_affine=False), (3, 96)),
}


@pytest.fixture
def products(monkeypatch):
    """A list of the FLOPs of every product that the interpreter runs."""
    from triton.runtime.interpreter import InterpreterBuilder

    flops = []
    real = InterpreterBuilder.create_dot

    def create_dot(builder, left, right, *others):
        flops.append(2 * left.data.shape[0] * left.data.shape[1] * right.data.shape[1])
        return real(builder, left, right, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    return flops


@pytest.mark.parametrize("name", LAYERS)
def test_products(name, products):
    build, shape = LAYERS[name]
    x = torch.randn(shape, requires_grad=True)
    with use_kernels("triton"), record_launches() as launches:
        build()(x).sum().backward()
    assert sum(products) == sum(map(count_distinct_flops, launches)) > 0
