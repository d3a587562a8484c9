"""Every layer against the papers' formulas in float64: outputs, and each gradient by name.

Torch's kernels compute in float64, and the compiled ones, which have no float64, in float32.
"""

import pytest
import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import (
    BATCH_LAYERS,
    CHANNEL_LAYERS,
    FEW_POSITIONS,
    LAYOUTS,
    SHAPES,
    SOLVERS,
    assert_close,
    channel_layers,
    channels_last,
    contiguous,
    gradients_by_name,
    randomise,
    twin,
)
from whitenorm.ops.layout import channel_groups, sample_groups
from whitenorm.ops.torch import passes
from whitenorm.solvers import Newton


def compare(layer, x, dtype, smooth=False):
    """Run both on the same input and the same output gradient; ``smooth`` for exact roots at repeated eigenvalues."""
    naive = twin(layer)
    naive.solver = reference.inverse_root if smooth else naive.solver
    x = x.detach().requires_grad_()
    x64 = x.detach().to(device="cpu", dtype=torch.float64).requires_grad_()
    y, expected = layer(x), reference.forward(naive, x64)
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    assert_close(y, expected, dtype, "output")
    grad = torch.randn(y.shape, dtype=torch.float64).to(y)
    y.backward(grad)
    expected.backward(grad.to(device="cpu", dtype=torch.float64))
    expected_gradients = gradients_by_name(naive, x64)
    for name, gradient in gradients_by_name(layer, x).items():
        assert_close(gradient, expected_gradients[name], dtype, f"gradient of {name}")


def make_input(shape, dtype=torch.float64, device="cpu", mix=0.3):
    """Correlated channels with offsets."""
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, dtype=torch.float64).movedim(1, -1)
    channels = shape[1]
    x = x @ (torch.eye(channels) + mix * torch.randn(channels, channels)).double() + torch.randn(channels)
    return x.movedim(-1, 1).contiguous().to(device=device, dtype=dtype)


@pytest.fixture
def dtype(kernels):
    return torch.float32 if kernels == "native" else torch.float64


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize(
    ("name", "shape"),
    # One position a sample has no instance statistics.
    [(name, shape) for name in CHANNEL_LAYERS for shape in SHAPES if len(shape) > 2 or name in BATCH_LAYERS]
    + [(name, FEW_POSITIONS) for name in BATCH_LAYERS],
    ids=str,
)
def test_layouts_and_shapes(name, layout, shape, training, dtype):
    layer = randomise(channel_layers(12, dtype=dtype)[name]).train(training)
    compare(layer, layout(make_input(shape, dtype)), dtype)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_solvers(name, solver, training):
    layer = randomise(channel_layers(12, solver, dtype=torch.float64)[name]).train(training)
    compare(layer, make_input((3, 12, 5, 7)), torch.float64)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("solver", ["newton", Newton(steps=1), Newton(steps=7), "zca", "minimax"], ids=str)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_solvers_in_float32(name, solver, training):
    """Of those whose error float32 does not multiply by the condition number of these inputs."""
    layer = randomise(channel_layers(12, solver)[name]).train(training)
    compare(layer, make_input((3, 12, 5, 7), torch.float32), torch.float32)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("block_bytes", [1, 3000, 9000])
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in CHANNEL_LAYERS for shape in [(5, 12, 6, 7), (1, 12, 6, 7)]]
    + [(name, shape) for name in BATCH_LAYERS for shape in [(63, 12), FEW_POSITIONS]],
    ids=str,
)
def test_block_by_block(name, block_bytes, shape, layout, training, monkeypatch):
    """Large inputs are taken in blocks; here the blocks are small: a part of a sample, one, or two and a rest."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(passes, "BUFFER_BYTES", 2**17 if block_bytes == 3000 else 1)
    # With means within a few deviations of zero, and an input that is large enough, the mean is folded.
    monkeypatch.setattr(passes, "FOLDING_BYTES", 2**19 if block_bytes == 3000 else 1)
    layer = randomise(channel_layers(12, dtype=torch.float64)[name]).train(training)
    x = layout(make_input(shape))
    with torch.no_grad():
        rows = channel_groups(x, 4, pooled=True).split(x).flatten(3)
        blocks = passes.Workspace(rows).blocks(rows)
    assert len(blocks) > 1 or block_bytes > x.nbytes
    compare(layer, x, torch.float64)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-2, 0.5])
@pytest.mark.parametrize("solver", [*map(Newton, (0, 1, 5)), "zca", "cholesky"], ids=str)
@pytest.mark.parametrize("num_groups", [3, 4, 6, 12])
def test_group_whitening_of_vectors(num_groups, solver, eps, affine, dtype, monkeypatch):
    """With more groups than channels per group, the layer solves the dual; the reference does not."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", 500)
    monkeypatch.setattr(passes, "BUFFER_BYTES", 1)
    layer = randomise(whitenorm.GroupWhitening(num_groups, 24, solver, eps, affine, dtype=dtype))
    compare(layer, torch.randn(7, 24, dtype=dtype) + 3, dtype, smooth=solver == "zca")


def test_a_dual_is_used_where_it_is_smaller():
    x = torch.randn(7, 24)
    sizes = {g: sample_groups(x, g, may_be_dual=True).split(x).shape[2] for g in (3, 4, 6, 12)}
    assert sizes == {3: 3, 4: 4, 6: 4, 12: 2}
