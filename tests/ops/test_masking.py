"""Masked positions enter no statistic, change no other output, give 0 and get no gradient."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import whitenorm
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close, batch_layers, channels_last, contiguous
from whitenorm.functional import batch_whitening

LAYERS = list(batch_layers(12))
SOLVERS = ["newton", "zca", "minimax"]


def make_padded(shape=(4, 12, 9), seed=0, dtype=torch.float64, value=float("nan")):
    """Return an input padded with a value that would spoil every result it enters, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand((shape[0], *shape[2:]), generator=generator) < 0.7
    return x.where(mask.unsqueeze(1), value).to(dtype), mask


def select_valid(x, mask):
    """Return the vectors at the positions that count, (M, C)."""
    return x.movedim(1, -1)[mask]


@pytest.mark.parametrize("layout", [contiguous, channels_last])
@pytest.mark.parametrize("shape", [(60, 12), (4, 12, 30), (3, 12, 5, 7)])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", LAYERS)
def test_equals_the_valid_positions_alone(name, solver, shape, layout):
    x, mask = make_padded(shape)
    layer, other = (batch_layers(12, solver, dtype=torch.float64)[name] for _ in range(2))
    vectors, x = select_valid(x, mask).requires_grad_(), layout(x).requires_grad_()
    y, expected = layer(x, mask=mask), other(vectors)
    weights = torch.randn_like(expected)
    assert_close(select_valid(y, mask), expected, torch.float64, "output")
    assert not y.movedim(1, -1)[~mask].any()
    (select_valid(y, mask) * weights).sum().backward()
    (expected * weights).sum().backward()
    assert_close(select_valid(x.grad, mask), vectors.grad, torch.float64, "input")
    assert not x.grad.movedim(1, -1)[~mask].any()
    for (what, a), b in zip(layer.named_parameters(), other.parameters(), strict=True):
        assert_close(a.grad, b.grad, torch.float64, what)
    for (what, a), b in zip(layer.named_buffers(), other.buffers(), strict=True):
        assert_close(a, b, torch.float64, what)
    if layer.track_running_stats:
        assert_close(select_valid(layer.eval()(x, mask=mask), mask), other.eval()(vectors), torch.float64, "eval")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, device):
    x, mask = make_padded((4, 12, 40), dtype=dtype)
    layer = whitenorm.IterNorm(12, dtype=dtype, device=device)
    y = layer(x.to(device), mask=mask.to(device))
    assert y.dtype == dtype
    expected = whitenorm.IterNorm(12, dtype=torch.float64)(select_valid(x, mask).double())
    assert_close(select_valid(y.cpu(), mask), expected, dtype, "output")


def test_an_offset_of_a_thousand_deviations():
    x, mask = make_padded((8, 12, 40), value=0.0)
    x = x + 1000 * mask.unsqueeze(1)
    y = whitenorm.IterNorm(12)(x.float(), mask=mask)
    expected = whitenorm.IterNorm(12, dtype=torch.float64)(select_valid(x.float().double(), mask))
    assert (select_valid(y, mask) - expected).abs().max() < 1e-2


@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives(solver):
    x, mask = make_padded((2, 4, 7), value=0.0)

    def whiten(x, weight):
        return batch_whitening(x, weight=weight, training=True, group_size=2, solver=solver, mask=mask)

    inputs = (x.requires_grad_(), torch.rand(4, dtype=torch.float64, requires_grad=True))
    assert gradcheck(whiten, inputs)
    assert gradgradcheck(whiten, inputs)


def test_a_batch_of_padding_alone_changes_nothing():
    layer = whitenorm.IterNorm(4)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    x = torch.randn(2, 4, 3, requires_grad=True)
    y = layer(x, mask=torch.zeros(2, 3, dtype=torch.bool))
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    for name, buffer in before.items():
        assert torch.equal(layer.get_buffer(name), buffer)


def one_position():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[0, 1] = True
    return mask


@pytest.mark.parametrize("name", LAYERS)
def test_one_position_in_training_is_batch_norms_error(name):
    layer = batch_layers(12)[name]
    before = {key: buffer.clone() for key, buffer in layer.named_buffers()}
    with pytest.raises(ValueError, match=r"Expected more than 1 value per channel .* and 1 value that counts"):
        layer(torch.randn(2, 12, 3), mask=one_position())
    for key, buffer in before.items():
        assert torch.equal(layer.get_buffer(key), buffer)
    if layer.track_running_stats:
        assert layer.eval()(torch.randn(2, 12, 3), mask=one_position()).isfinite().all()


def compile_layer(layer):
    return torch.compile(layer, backend="aot_eager", fullgraph=True)


def vmap_layer(layer):
    """Apply a layer under vmap; it has no buffers, because they cannot be written there."""
    layer = whitenorm.BatchWhitening(4, affine=False, track_running_stats=False)
    return lambda x, mask: torch.vmap(lambda x: layer(x, mask=mask))(x.expand(2, *x.shape))[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("wrap", [compile_layer, vmap_layer])
@pytest.mark.parametrize("positions", [0, 1])
def test_too_few_positions_change_nothing_where_they_cannot_be_read(wrap, positions):
    layer = whitenorm.BatchWhitening(4, momentum=None)
    layer(torch.randn(8, 4))
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    x = torch.randn(2, 4, 3, requires_grad=True)
    y = wrap(layer)(x, mask=one_position() & (positions > 0))
    y.square().sum().backward()
    assert y.isfinite().all()
    assert not x.grad.any()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in layer.parameters())
    for name, buffer in before.items():
        assert torch.equal(layer.get_buffer(name), buffer), name


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("images", [16, 2**14])
def test_a_trace_reads_no_value(mode, images):
    """Neither of a mask, nor of an input large enough that the library would check whether to centre it first."""

    def whiten(x, mask):
        return batch_whitening(x, training=True, group_size=4, mask=mask)

    x, mask = torch.randn(images, 8), torch.rand(images) < 0.7
    traced = make_fx(whiten, tracing_mode=mode)(x, mask)
    assert torch.allclose(traced(x, mask), whiten(x, mask), atol=1e-5)


class Padded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = whitenorm.IterNorm(12)

    def forward(self, x, mask):
        return self.norm(x, mask=mask)


def test_recalibration_counts_valid_positions():
    model, other = Padded(), torch.nn.Sequential(whitenorm.IterNorm(12))
    x, mask = make_padded(dtype=torch.float32)
    whitenorm.recalibrate_(model, [{"x": x, "mask": mask}], progress=False)
    whitenorm.recalibrate_(other, [select_valid(x, mask)], progress=False)
    assert torch.allclose(model.norm.running_whitening, other[0].running_whitening, atol=1e-5)


def test_compiled():
    x, mask = make_padded(dtype=torch.float32, value=0.0)
    layer = whitenorm.IterNorm(12)
    expected = layer(x, mask=mask)
    compile_layer = torch.compile(whitenorm.IterNorm(12), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compile_layer(x, mask=mask), expected, atol=1e-5)


def test_padding_does_not_change_tokens():
    layer = whitenorm.LayerWhitening(12)
    x, mask = make_padded((4, 12, 9), dtype=torch.float32)
    x, clean = x.mT.contiguous().requires_grad_(), torch.nan_to_num(x.mT)
    y = layer(x, mask=mask)
    assert torch.allclose(y[mask], layer(clean)[mask], atol=TOLERANCE[torch.float32])
    assert not y[~mask].any()
    y.square().sum().backward()
    assert not x.grad[~mask].any()
    assert layer.weight.grad.isfinite().all()


def test_wrong_masks():
    x = torch.randn(2, 12, 5)
    for mask in (torch.ones(2, 5), torch.ones(5, 2, dtype=torch.bool), torch.ones(2, 12, 5, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"expected a boolean mask of shape \(2, 5\)"):
            whitenorm.IterNorm(12)(x, mask=mask)
    with pytest.raises(ValueError, match=r"expected a boolean mask of shape \(2, 5\)"):
        whitenorm.LayerWhitening(12)(x.mT, mask=torch.ones(2, 12, dtype=torch.bool))


def make_jagged(*lengths, width=12):
    return torch.nested.nested_tensor([torch.randn(n, width) for n in lengths], layout=torch.jagged, requires_grad=True)


def test_jagged_tokens():
    layer, x = whitenorm.LayerWhitening(12), make_jagged(3, 5)
    y = layer(x)
    assert torch.equal(y.values(), layer(x.values()))
    y.values().square().sum().backward()
    assert x.grad.values().isfinite().all()


@pytest.mark.parametrize("layer", [whitenorm.IterNorm(12), whitenorm.GroupWhitening(4, 12)], ids=["batch", "sample"])
def test_jagged_channels_are_an_error(layer):
    with pytest.raises(ValueError, match=r"expected a dense tensor \(got a nested one\); pad it"):
        layer(make_jagged(3, 5))
