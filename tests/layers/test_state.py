"""A layer as a module: saving, copying, printing, moving, and functional calls."""

import copy
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import whitenorm
from tests.helpers.cases import (
    BATCH_LAYERS,
    CHANNEL_LAYERS,
    DEVICES,
    TOKEN_LAYERS,
    channel_layers,
    randomise,
    token_layers,
)
from whitenorm.ops import dispatch

LAYERS = [*CHANNEL_LAYERS, *TOKEN_LAYERS]


def make(name, **options):
    layers = {**channel_layers(12, **options), **token_layers(12, **options)}
    return randomise(layers[name])


def make_input(name, device="cpu"):
    return torch.randn((2, 5, 12) if name in TOKEN_LAYERS else (4, 12, 5, 5), device=device)


@pytest.mark.parametrize("name", LAYERS)
def test_state_dict_round_trip(name):
    layer, other = make(name), {**channel_layers(12), **token_layers(12)}[name]
    other.load_state_dict(layer.state_dict())
    x = make_input(name)
    assert torch.equal(layer.eval()(x), other.eval()(x))
    assert torch.equal(layer.train()(x), other.train()(x))


def test_state_dict_names():
    names = ["weight", "bias", "running_mean", "running_whitening", "num_batches_tracked"]
    assert list(whitenorm.IterNorm(8).state_dict()) == names
    assert list(whitenorm.DecorrelatedBatchNorm(8).state_dict()) == names
    names[3] = "running_cov"
    assert list(whitenorm.BatchWhitening(8, population="covariance").state_dict()) == names
    assert set(whitenorm.SwitchableWhitening(8).state_dict()) == {*names, "mean_logits", "cov_logits"}
    assert list(whitenorm.GroupWhitening(4, 8).state_dict()) == ["weight", "bias"]


def pickle_roundtrip(layer):
    return pickle.loads(pickle.dumps(layer))


@pytest.mark.parametrize("through", [copy.deepcopy, pickle_roundtrip])
@pytest.mark.parametrize("name", LAYERS)
def test_copies_after_use(name, through):
    """After training and inference, with whatever they left behind."""
    layer, x = make(name), make_input(name)
    layer.train()(x.requires_grad_()).sum().backward()
    layer.eval()(x)
    other = through(layer)
    assert torch.equal(layer(x), other(x))
    other.train()(x * 3)
    for name_, buffer in layer.named_buffers():
        assert not torch.equal(buffer, dict(other.named_buffers())[name_])


@pytest.mark.parametrize("name", LAYERS)
def test_repr_shows_the_options(name):
    text = repr(make(name))
    assert "12" in text
    assert "solver=Newton(steps=5)" in text
    assert "eps=" in text


def test_reprs():
    expected = "GroupWhitening(4, 8, solver=Newton(steps=5), eps=1e-05, affine=True, bias=True)"
    assert repr(whitenorm.GroupWhitening(4, 8)) == expected
    assert "population='covariance'" in repr(whitenorm.BatchWhitening(8, population="covariance"))
    assert "statistics=('bw', 'iw')" in repr(whitenorm.SwitchableWhitening(8))


@pytest.mark.parametrize("name", ["bw", "bw-grouped", "bw-sigma", "sw", "iw", "gw"])
def test_gamma_without_beta(name):
    """The layer with β, of which β is zero and stays so."""
    layer, other = channel_layers(12, bias=False)[name], channel_layers(12)[name]
    assert layer.bias is None
    assert "bias=False" in repr(layer)
    x, grad = make_input(name), torch.randn(4, 12, 5, 5)
    torch.nn.init.uniform_(layer.weight)
    other.load_state_dict({**layer.state_dict(), "bias": torch.zeros(12)})
    for one in (layer, other):
        one(x).backward(grad)
    assert torch.allclose(layer(x), other(x), atol=1e-6)
    assert torch.allclose(layer.weight.grad, other.weight.grad, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_moving_between_dtypes(name):
    layer, x = make(name), make_input(name)
    before = layer.eval()(x)
    assert layer.double()(x.double()).dtype == torch.float64
    assert torch.allclose(layer.float()(x), before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_moving_between_devices(name, device):
    layer, x = make(name), make_input(name)
    before = layer.eval()(x)
    moved = layer.to(device)(x.to(device))
    assert moved.device.type == device
    assert torch.allclose(moved.cpu(), before, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_made_without_storage_then_filled(name):
    """Large models are made on the meta device."""
    with torch.device("meta"):
        layer = {**channel_layers(12), **token_layers(12)}[name]
    assert all(tensor.is_meta for tensor in [*layer.parameters(), *layer.buffers()])
    assert layer.train()(make_input(name, "meta")).is_meta
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    fresh = {**channel_layers(12), **token_layers(12)}[name]
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in fresh.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_dtype_argument(name, dtype):
    layer = {**channel_layers(12, dtype=dtype), **token_layers(12, dtype=dtype)}[name]
    for key, tensor in layer.state_dict().items():
        expected = torch.promote_types(dtype, torch.float32) if key.startswith("running") else dtype
        assert tensor.dtype == (torch.long if key == "num_batches_tracked" else expected)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_functional_call(name, training):
    """It uses the given parameters and buffers and leaves the layer's unchanged; also under torch.func.grad."""
    layer, other = make(name).train(training), make(name).train(training)
    for tensor in [*other.parameters(), *other.buffers()]:
        if tensor.is_floating_point():
            tensor.data.mul_(1.5)
    before = copy.deepcopy(layer.state_dict())
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    x = make_input(name)
    called = torch.func.functional_call(layer, {key: tensor.clone() for key, tensor in state.items()}, (x,))
    assert torch.equal(called, other(x))
    assert all(torch.equal(before[key], tensor) for key, tensor in layer.state_dict().items())

    def loss(x):
        copies = {key: tensor.clone() for key, tensor in state.items()}
        return torch.func.functional_call(layer, copies, (x,)).pow(3).sum()

    expected = x.clone().requires_grad_()
    loss(expected).backward()
    assert torch.allclose(torch.func.grad(loss)(x), expected.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_backward_twice_with_retain_graph(name, training):
    layer, x = make(name).train(training), make_input(name).requires_grad_()
    loss = layer(x).pow(3).sum()
    inputs = [x, *layer.parameters()]
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", LAYERS)
def test_only_tensors_that_require_gradients_get_them(name):
    layer, x = make(name), make_input(name)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    assert layer(x).grad_fn is None
    y = layer(x.requires_grad_())
    y.sum().backward()
    assert x.grad is not None
    frozen = make(name)
    if not list(frozen.parameters()):
        return
    frozen(x.detach()).sum().backward()
    assert all(parameter.grad is not None for parameter in frozen.parameters())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", CHANNEL_LAYERS)
def test_memory_format_is_kept(name, memory_format):
    x = make_input(name).to(memory_format=memory_format).requires_grad_()
    for training in (True, False):
        y = make(name).train(training)(x)
        assert y.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in BATCH_LAYERS for shape in [(9, 12), (4, 12, 1, 1)]]
    + [(name, (4, 12, 5, 5)) for name in CHANNEL_LAYERS],
    ids=str,
)
def test_output_may_be_changed_in_place(name, training, memory_format, shape):
    """As with ReLU(inplace=True), which follows most norms."""
    layer, x = make(name).train(training), torch.randn(shape)
    if len(shape) == 4:
        x = x.to(memory_format=memory_format)
    expected = (layer(x.clone().requires_grad_()) + 1).relu()
    a = x.clone().requires_grad_()
    y = layer(a)
    y += 1
    y = torch.relu_(y)
    y.sum().backward()
    assert torch.allclose(y, expected, atol=1e-5)
    assert a.grad.isfinite().all()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_activation_checkpointing(name, use_reentrant):
    layer, x = make(name), make_input(name)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(a).pow(3).sum().backward()
    checkpoint(layer, b, use_reentrant=use_reentrant).pow(3).sum().backward()
    assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith(("bw", "sw"))])
def test_training_between_an_inference_and_its_backward(name):
    layer, x = make(name).eval(), make_input(name).requires_grad_()
    y = layer(x)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    layer.train()(x.detach() * 2)
    y.sum().backward()
    assert torch.allclose(x.grad, expected)


@pytest.mark.usefixtures("torch_kernels")
def test_no_work_for_an_input_without_gradient(monkeypatch):
    layer, x = whitenorm.IterNorm(12), torch.randn(4, 12, 5)
    layer(x.requires_grad_()).sum().backward()
    monkeypatch.setattr(dispatch, "TORCH", dispatch.TORCH._replace(input_gradient=None))
    layer(x.detach()).sum().backward()
    with pytest.raises(TypeError):
        layer(x).sum().backward()


@pytest.mark.parametrize("name", ["bw-grouped", "bw-sigma", "sw5", "iw", "gw"])
def test_exports_with_any_batch_size(name):
    layer = make(name).eval()
    batch = torch.export.Dim("batch", min=2)
    # Newer versions' default. The strict tracer of 2.6 takes no batch size of any autograd function.
    options = {"dynamic_shapes": ({0: batch},), "strict": False}
    exported = torch.export.export(layer, (make_input(name),), **options).module()
    x = torch.randn(7, 12, 5, 5)
    assert torch.allclose(exported(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", ["bw-grouped", "bw-sigma", "sw5", "iw-plain", "gw", "lw"])
def test_traces_without_graph_breaks(name, training):
    """With gradients in training, without them at inference."""
    layer, x = make(name).train(training), make_input(name)
    torch.compiler.reset()
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(training):
        a, b = x.clone().requires_grad_(training), x.clone().requires_grad_(training)
        expected, actual = layer(a), compiled(b)
    assert torch.allclose(actual, expected, atol=1e-4)
    if training:
        expected.pow(3).sum().backward()
        actual.pow(3).sum().backward()
        assert torch.allclose(b.grad, a.grad, rtol=1e-3, atol=1e-3)
