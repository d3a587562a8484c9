"""Models cast to half precision: their statistics stay float32, and with them what the layers do."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import whitenorm
from tests.helpers.cases import BATCH_LAYERS, CHANNEL_LAYERS, batch_layers, channel_layers, randomise
from tests.helpers.models import ResNet
from tests.helpers.ranks import gloo, needs_fsdp

HALVES = [torch.bfloat16, torch.float16]
POPULATION = [name for name in CHANNEL_LAYERS if list(channel_layers(12)[name].buffers())]
CASTS = {
    "to": lambda layer, dtype: layer.to(dtype),
    "to with device": lambda layer, dtype: layer.to("cpu", dtype),
    "method": lambda layer, dtype: layer.half() if dtype == torch.float16 else layer.bfloat16(),
    "type": lambda layer, dtype: layer.type(dtype),
    "root": lambda layer, dtype: nn.Sequential(nn.Sequential(layer)).to(dtype)[0][0],
}


def floats(tensors):
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def make_ill_conditioned(n=256, channels=12):
    """Return correlated channels whose covariance has a condition number of about 1e5."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64))[0]
    spectrum = torch.logspace(0, -2.5, channels, dtype=torch.float64)
    rows = torch.randn(n, channels, generator=generator, dtype=torch.float64)
    return ((rows * spectrum) @ factor * 3 + 1).float()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("name", POPULATION)
def test_casts_leave_statistics_alone(name, cast, dtype):
    layer = randomise(channel_layers(12)[name])
    before = dict(layer.named_buffers())
    values = copy.deepcopy(before)
    layer = CASTS[cast](layer, dtype)
    assert floats(layer.parameters()) <= {dtype}
    for key, buffer in layer.named_buffers():
        assert buffer.dtype == values[key].dtype
        assert torch.equal(buffer, values[key])
        # The tensors that averages, other ranks or an optimizer may hold.
        assert buffer is before[key]


@pytest.mark.parametrize("name", POPULATION)
def test_double_is_double_and_back(name):
    layer = randomise(channel_layers(12)[name])
    assert floats(layer.double().buffers()) == {torch.float64}
    assert floats(layer.to("cpu").buffers()) == {torch.float64}
    assert floats(layer.bfloat16().buffers()) == {torch.float32}
    assert floats(layer.double().float().buffers()) == {torch.float32}
    assert layer.num_batches_tracked.dtype == torch.long


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_made_in_half_precision(dtype):
    layer = whitenorm.SwitchableWhitening(12, dtype=dtype)
    assert floats(layer.parameters()) == {dtype}
    assert floats(layer.buffers()) == {torch.float32}
    torch.set_default_dtype(dtype)
    try:
        layer = whitenorm.IterNorm(12, momentum=None)
    finally:
        torch.set_default_dtype(torch.float32)
    assert floats(layer.parameters()) == {dtype}
    assert floats(layer.buffers()) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_the_cumulative_average_is_one_whatever_the_default_dtype(dtype):
    layer = whitenorm.IterNorm(4, momentum=None, dtype=torch.float64)
    batches = torch.randn(3, 8, 4, dtype=torch.float64)
    torch.set_default_dtype(dtype)
    try:
        for x in batches:
            layer(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(layer.running_mean, batches.mean((0, 1)), rtol=0, atol=1e-14)


def test_without_storage_and_in_shared_memory():
    with torch.device("meta"):
        layer = whitenorm.IterNorm(4)
    layer = layer.to(torch.bfloat16)
    assert all(buffer.is_meta for buffer in layer.buffers())
    assert floats(layer.buffers()) == {torch.float32}
    layer = layer.to_empty(device="cpu")
    assert floats(layer.buffers()) == {torch.float32}
    assert not any(buffer.is_meta for buffer in layer.buffers())
    assert all(buffer.is_shared() for buffer in layer.share_memory().buffers())


def test_with_parameters_swapped_on_conversion():
    layer = randomise(whitenorm.IterNorm(4))
    held, before = layer.running_whitening, layer.running_whitening.clone()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.bfloat16()
        with pytest.warns(UserWarning, match="recalibrate_"):
            layer.load_state_dict({key: value.half() for key, value in layer.state_dict().items()}, assign=True)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert layer.running_whitening is held
    assert held.dtype == torch.float32
    assert torch.equal(held, before.half().float())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("through", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_of_half_layers(through, dtype):
    layer = randomise(whitenorm.BatchWhitening(12, 4, population="covariance")).to(dtype)
    other = through(layer)
    assert floats(other.buffers()) == {torch.float32}
    x = torch.randn(8, 12, dtype=dtype)
    assert torch.equal(layer.eval()(x), other.eval()(x))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", POPULATION)
def test_the_state_of_a_half_model_goes_round_whole(name, dtype):
    layer, other = (randomise(channel_layers(12)[name], seed).to(dtype) for seed in (0, 1))
    state = copy.deepcopy(layer.state_dict())
    for assign in (False, True):
        other.load_state_dict(copy.deepcopy(state), assign=assign)
        for key, value in other.state_dict().items():
            assert value.dtype == state[key].dtype
            assert torch.equal(value, state[key])


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_checkpoint_in_half_precision_is_loaded_wide_and_with_a_warning(dtype, assign):
    model = nn.Sequential(randomise(whitenorm.IterNorm(4)), nn.BatchNorm1d(4))
    checkpoint = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in model.state_dict().items()
    }
    before = dict(checkpoint)
    with pytest.warns(UserWarning, match=f"got .*'running_whitening': {dtype}.*recalibrate_"):
        model.load_state_dict(checkpoint, assign=assign)
    assert floats(model[0].buffers()) == {torch.float32}
    assert torch.equal(model[0].running_whitening, before["0.running_whitening"].float())
    assert all(checkpoint[key] is value for key, value in before.items())
    model[0].eval()(torch.randn(3, 4))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("population", ["whitening", "covariance"])
@pytest.mark.parametrize("solver", ["newton", "zca", "cholesky", "minimax"])
def test_inference_after_a_cast_is_that_of_float32(solver, population, dtype):
    layer = whitenorm.BatchWhitening(12, solver=solver, population=population, momentum=1.0, affine=False)
    x = make_ill_conditioned()
    layer(x)
    layer.eval()
    # The input is rounded, as it is in a half model, for both.
    x = x.to(dtype)
    expected = layer(x.float())
    actual = copy.deepcopy(layer).to(dtype)(x)
    assert actual.dtype == dtype
    assert (actual.float() - expected).abs().max() <= torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_statistics_beyond_the_range_of_float16(population):
    """A variance of 1e6."""
    torch.manual_seed(0)
    x = torch.randn(64, 12, 4, 4) * 1000
    layers = {"bw": whitenorm.BatchWhitening(12, 4, "zca", population=population, momentum=1.0)}
    layers["sw"] = whitenorm.SwitchableWhitening(12, 4, momentum=1.0)
    for name, layer in layers.items():
        half = copy.deepcopy(layer).half()
        half(x.half())
        layer(x.half().float())
        assert all(buffer.isfinite().all() for buffer in half.buffers())
        actual, expected = (module.eval()(values) for module, values in ((half, x.half()), (layer, x.half().float())))
        assert torch.allclose(actual.float(), expected, atol=5e-3), name


@pytest.mark.usefixtures("kernels")
def test_mixing_weights_of_half_logits_are_computed_in_float32():
    layer = whitenorm.SwitchableWhitening(12, 4, ("bw", "iw", "bn", "in", "ln"))
    with torch.no_grad():
        layer.mean_logits.copy_(torch.tensor([0.3, -1.2, 2.1, 0.7, -0.4]).bfloat16())
        layer.cov_logits.copy_(layer.mean_logits)
    half = copy.deepcopy(layer).bfloat16()
    assert half.mixing() == layer.mixing()
    x = torch.randn(4, 12, 5, 5)
    for training in (True, False):
        assert torch.allclose(half.train(training)(x), layer.train(training)(x), atol=1e-6)


@pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw"])
def test_a_half_model_is_converted(name):
    model = ResNet().bfloat16().eval()
    x = torch.randn(4, 3, 16, 16, dtype=torch.bfloat16)
    expected = model(x)
    whitenorm.convert_(model, name)
    for module in model.modules():
        if isinstance(module, whitenorm.layers.base.PopulationWhitening):
            assert floats(module.parameters()) == {torch.bfloat16}
            assert floats(module.buffers()) == {torch.float32}
    if name != "sw":
        assert (model(x) - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["iternorm", "bw-sigma"])
def test_the_population_of_a_half_norm_is_taken_over_exactly(name, dtype):
    """The sum of variance and ε is what must not be rounded."""
    norm = nn.BatchNorm2d(4).to(dtype).eval()
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([1e-3, 1e-2, 1.0, 30.0]))
    layer = whitenorm.convert_(nn.Sequential(copy.deepcopy(norm)), name)[0]
    x = torch.randn(2, 4, 3, 3)
    expected = norm.float()(x)
    assert torch.allclose(layer.float()(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_a_half_model_is_folded(population, affine):
    """Into the convolution, and behind what cannot take it into one of the model's dtype."""
    torch.manual_seed(0)
    layers = [whitenorm.BatchWhitening(12, 4, population=population, affine=affine) for _ in range(2)]
    layers = [randomise(layer, seed) for seed, layer in enumerate(layers)]
    model = nn.Sequential(nn.Conv2d(3, 12, 1), layers[0], nn.ReLU(), layers[1], nn.Flatten()).eval()
    x = torch.randn(4, 3, 5, 5)
    expected = model(x)
    half = copy.deepcopy(model).bfloat16()
    whitenorm.fold_(half)
    assert isinstance(half[3], nn.Conv2d)
    assert floats(half.parameters()) == {torch.bfloat16}
    assert (half(x.bfloat16()) - expected).abs().max() <= 0.1 * expected.abs().max()


@needs_fsdp
@pytest.mark.parametrize("synchronised", [False, True])
def test_fsdp_in_mixed_precision(tmp_path, synchronised):
    """Parameters and inputs in bfloat16, statistics in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), whitenorm.BatchWhitening(12, 4, population="covariance"), nn.Linear(12, 2))
    plain = copy.deepcopy(model)
    with gloo(tmp_path / "store"):
        if synchronised:
            whitenorm.synchronize_(model)
        mesh = init_device_mesh("cpu", (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*model, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        x = torch.randn(64, 6)
        y = model(x)
        y.float().square().mean().backward()
        assert y.dtype == torch.bfloat16
        assert floats(model.buffers()) == {torch.float32}
        plain(x)
        assert (model[1].running_cov - plain[1].running_cov).abs().max() <= 0.02 * plain[1].running_cov.abs().max()
        # And not what bfloat16 would hold.
        assert not torch.equal(model[1].running_cov, model[1].running_cov.bfloat16().float())
        model.bfloat16()
        assert floats(model.buffers()) == {torch.float32}


def test_half_models_export():
    layers = [randomise(batch_layers(12)[name]) for name in ("bw", "bw-sigma")]
    model = nn.Sequential(nn.Conv2d(3, 12, 1), *layers).bfloat16().eval()
    x = torch.randn(2, 3, 5, 5, dtype=torch.bfloat16)
    exported = torch.export.export(model, (x,)).module()
    assert torch.allclose(exported(x), model(x), atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", BATCH_LAYERS)
def test_functional_calls_of_half_layers(name):
    layer = randomise(batch_layers(12)[name]).bfloat16()
    x = torch.randn(8, 12, dtype=torch.bfloat16)
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    for training in (False, True):
        layer.train(training)
        assert torch.equal(torch.func.functional_call(layer, copy.deepcopy(state), (x,)), layer(x))


def accuracy(model, split):
    dtype = next(model.parameters()).dtype
    return (model.eval()(split.images.flatten(1).to(dtype)).argmax(1) == split.labels).float().mean().item()


def train_on_digits(solver, dtype):
    train, test = pytest.importorskip("whitenorm_lab.digits").load()
    torch.manual_seed(1)
    norm = whitenorm.BatchWhitening(64, solver=solver, population="covariance")
    model = nn.Sequential(nn.Linear(64, 64), norm, nn.ReLU(), nn.Linear(64, 10)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        for rows in torch.randperm(len(train.images)).split(64)[:-1]:
            images = train.images[rows].flatten(1).to(dtype)
            nn.functional.cross_entropy(model(images).float(), train.labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, test


@pytest.mark.parametrize("solver", ["zca", "cholesky"])
def test_digits_learned_in_pure_bfloat16_and_after_a_cast(solver):
    model, test = train_on_digits(solver, torch.float32)
    expected = accuracy(model, test)
    assert expected > 0.85
    assert abs(accuracy(copy.deepcopy(model).bfloat16(), test) - expected) < 0.01
    assert abs(accuracy(copy.deepcopy(model).half(), test) - expected) < 0.01
    model, test = train_on_digits(solver, torch.bfloat16)
    assert accuracy(model, test) > expected - 0.03
