"""The rest of a model's life: compile, export, ONNX, mixed precision, averaged copies, safetensors."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import whitenorm
from tests.helpers.cases import channel_layers, randomise, token_layers
from tests.helpers.models import ResNet, convert_and_train
from tests.helpers.sampling import mark_slow

NAMES = ["iternorm", "dbn", "bw-sigma", "sw", "sw5", "gw", "iw"]


def make(name):
    layer = {**channel_layers(12), **token_layers(12)}[name]
    return randomise(layer), (5, 12) if name in token_layers(12) else (12, 6, 6)


def both(layer, x):
    """Output and gradients."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    grads = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    return [y.detach(), x.grad, *grads]


@pytest.mark.parametrize(
    ("name", "training"),
    # A sample's own statistics are the same in both modes.
    mark_slow(
        [(name, True) for name in ("bw-grouped", "bw-sigma", "sw5", "iw-plain", "gw", "lw")]
        + [(name, False) for name in ("bw-grouped", "bw-sigma", "sw5")],
        sample=[("bw-grouped", True), ("bw-sigma", False), ("lw", True)],
    ),
)
def test_compiles_whole_with_any_batch_size(name, training):
    torch._dynamo.reset()
    layer, shape = make(name)
    layer = layer.train(training)
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 7, 9):
        x = torch.randn(n, *shape)
        for actual, expected in zip(both(compiled, x), both(plain, x), strict=True):
            assert torch.allclose(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_whole_network_trains_compiled():
    torch._dynamo.reset()
    model = whitenorm.convert_(ResNet(widths=(8,)), "iternorm", where="l1", steps=2)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(8, 3, 8, 8)
    loss, expected = compiled(x).square().mean(), plain(x).square().mean()
    loss.backward()
    expected.backward()
    assert torch.allclose(loss, expected, rtol=1e-4)
    for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad, atol=1e-3 * other.grad.abs().max().item() + 1e-6)


# The exporter's own warnings.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", mark_slow(NAMES, sample=["iternorm", "gw"]))
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = convert_and_train(ResNet(widths=(8,)), name)
    if name != "bw-sigma":  # ONNX has no eigendecomposition; folding does away with it.
        check_onnx(model, tmp_path, runtime)
    if name in ("iternorm", "dbn", "bw-sigma"):
        check_onnx(whitenorm.fold_(model), tmp_path, runtime)


def check_onnx(model, folder, runtime):
    path = folder / "model.onnx"
    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(
        model, (torch.randn(3, 3, 16, 16),), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = torch.randn(5, 3, 16, 16)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(actual), model(x), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision(name, dtype):
    model = whitenorm.convert_(ResNet(), name)
    plain = copy.deepcopy(model)
    x = torch.randn(8, 3, 8, 8)
    with torch.autocast("cpu", dtype=dtype):
        y = model(x)
    assert y.dtype == dtype
    y.float().square().mean().backward()
    expected = plain(x)
    assert (y.float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(buffer.dtype in (torch.float32, torch.long) for buffer in model.buffers())


@pytest.mark.parametrize("name", NAMES)
def test_averaged_copies(name):
    model = whitenorm.convert_(ResNet(), name)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    model(torch.randn(8, 3, 8, 8)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    average.update_parameters(model)
    if name in ("iternorm", "sw"):
        whitenorm.recalibrate_(average, [torch.randn(8, 3, 8, 8)], progress=False)
    assert average.eval()(torch.randn(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_safetensors(name, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = convert_and_train(ResNet(), name)
    safetensors.save_model(model, tmp_path / "model.safetensors")
    other = whitenorm.convert_(ResNet(), name).eval()
    safetensors.load_model(other, tmp_path / "model.safetensors")
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(x), other(x))


def test_flops_are_counted():
    """Two products of 2·N·C·L·K for moments and map, and Newton's."""
    layer = whitenorm.IterNorm(16, 8, steps=5)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(4, 16, 6, 6))
    newton = 12 * 2 * 2 * 8**3
    assert counter.get_total_flops() == 2 * (2 * 4 * 16 * 36 * 8) + newton
    with FlopCounterMode(display=False) as counter:
        layer.eval()(torch.randn(4, 16, 6, 6))
    assert counter.get_total_flops() == 2 * 4 * 16 * 36 * 8


def test_folding_adds_no_flops():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8)).eval()
    x = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as bare:
        model[0](x)
    whitenorm.fold_(model)
    with FlopCounterMode(display=False) as folded:
        model(x)
    assert folded.get_total_flops() == bare.get_total_flops()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", [*channel_layers(12), *token_layers(12)])
def test_torchscript_traces(name, grad):
    layer, shape = make(name)
    layer.eval()
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        # TorchScript's own: that it is deprecated, and that it takes sizes for constants.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, torch.randn(4, *shape))
    x = torch.randn(4, *shape)
    assert torch.allclose(traced(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 12), (4, 12, 6, 6)])
@pytest.mark.parametrize("name", ["bw", "bw-grouped", "bw-plain"])
def test_the_old_exporter_of_onnx_takes_batch_whitening(name, shape, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, x = make(name)[0].eval(), torch.randn(shape)
    file = str(tmp_path / "layer.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(layer, (x,), file, dynamo=False, input_names=["x"])
    (y,) = onnxruntime.InferenceSession(file).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(y), layer(x), atol=1e-5)
