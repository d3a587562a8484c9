"""Where the C++ kernels run, and where torch's are used although they are chosen: with the same numbers."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils.flop_counter import FlopCounterMode

import whitenorm
from tests.helpers.cases import TOKEN_LAYERS, assert_close, channel_layers, randomise, token_layers
from whitenorm.ops.native import fused, steps

LAYERS = ["bw", "bw-sigma", "sw5", "iw", "gw"]
WITHOUT_STATE = ["bw-untracked", "sw-untracked", "iw", "gw"]


@pytest.fixture
def calls(monkeypatch):
    """Return the list of the names of all functions of the library that are called."""
    names, call = [], steps.call

    def record(name, *args):
        names.append(name)
        return call(name, *args)

    for module in (steps, fused):
        monkeypatch.setattr(module, "call", record)
    return names


def make_layer(name, dtype=torch.float32):
    """Return a layer with random parameters and running statistics."""
    return randomise(channel_layers(12, dtype=dtype)[name])


def make_input(*shape, dtype=torch.float32):
    return torch.randn(shape or (4, 12, 5, 5), generator=torch.Generator().manual_seed(0)).to(dtype)


@contextlib.contextmanager
def torch_kernels():
    whitenorm.set_kernels("torch")
    yield
    whitenorm.set_kernels("native")


def differentiate(layer, x):
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return [y.detach(), *torch.autograd.grad((y * make_input(*y.shape).cumsum(0)).sum(), [x, *parameters])]


def compare(function):
    """Compare the results of a function by the native kernels and by torch's; both change no layer."""
    actual = function()
    with torch_kernels():
        expected = function()
    for tensor, correct in zip(actual, expected, strict=True):
        assert_close(tensor, correct, torch.float32)


# Sorted, so that all workers of a test run collect the same names.
BATCH = ["wn_apply", "wn_input_gradient", "wn_map_gradients", "wn_moments", "wn_newton", "wn_newton_backward"]
SAMPLES = ["wn_whiten_samples", "wn_whiten_samples_backward"]
FUSED_BATCH = ["wn_whiten_batch", "wn_whiten_batch_backward"]


@pytest.mark.parametrize("mode", ["native", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "expected"), [("bw", FUSED_BATCH), ("sw5", BATCH), ("iw", SAMPLES), ("gw", SAMPLES)], ids=str
)
def test_steps_that_run(name, expected, dtype, mode, calls):
    whitenorm.set_kernels(mode)
    differentiate(make_layer(name), make_input(dtype=dtype))
    assert sorted(set(calls)) == expected


@pytest.mark.parametrize("name", TOKEN_LAYERS)
def test_tokens(name, calls):
    differentiate(token_layers(12)[name], make_input(4, 5, 12))
    assert sorted(set(calls)) == SAMPLES


def test_eval_mode(calls):
    differentiate(make_layer("bw").eval(), make_input())
    assert set(calls) == {"wn_apply", "wn_map_gradients"}


@pytest.mark.parametrize(
    "solver", ["zca", "cholesky", "minimax", whitenorm.solvers.Newton(steps.MOST_STEPS + 1)], ids=str
)
def test_other_solvers_between_the_passes(solver, calls):
    layer = whitenorm.BatchWhitening(12, 4, solver)
    compare(lambda: differentiate(layer, make_input()))
    assert set(calls) == {"wn_moments", "wn_apply", "wn_map_gradients", "wn_input_gradient"}


def test_matrices_that_are_too_large_to_solve(calls):
    layer = whitenorm.BatchWhitening(65)
    compare(lambda: differentiate(layer, make_input(200, 65)))
    assert set(calls) == {"wn_moments", "wn_apply", "wn_map_gradients", "wn_input_gradient"}
    calls.clear()
    group = whitenorm.GroupWhitening(65, 130)
    compare(lambda: differentiate(group, make_input(3, 130, 9, 9)))
    assert "wn_moments" in calls
    assert not set(calls) & {*SAMPLES, "wn_newton", "wn_newton_backward"}


def test_more_features_than_the_workspace_holds(calls):
    layer = whitenorm.BatchWhitening(1025).eval()
    compare(lambda: [layer(make_input(4, 1025))])
    assert not calls


@pytest.mark.parametrize("name", LAYERS)
def test_float64_and_none_in_torch_mode(name, calls):
    layer = make_layer(name, torch.float64)
    compare(lambda: differentiate(layer, make_input(dtype=torch.float64)))
    with torch_kernels():
        differentiate(make_layer(name), make_input())
    assert not calls


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", LAYERS)
def test_compiled(name, backend, calls):
    layer = make_layer(name)
    x = make_input()
    torch.compiler.reset()
    actual = differentiate(torch.compile(layer, backend=backend, fullgraph=True), x)
    assert not calls
    for tensor, expected in zip(actual, differentiate(make_layer(name), x), strict=True):
        assert_close(tensor, expected, torch.float32)
    assert calls


@pytest.mark.parametrize("name", LAYERS)
def test_exported(name, calls):
    layer, x = make_layer(name).eval(), make_input()
    actual = torch.export.export(layer, (x,)).module()(x)
    assert not calls
    assert_close(actual, layer(x), torch.float32)


@pytest.mark.parametrize("name", WITHOUT_STATE)
def test_function_transforms(name, calls):
    layer, x = make_layer(name), make_input(3, 4, 12, 5, 5)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).pow(3).sum()

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    tangent = torch.func.jvp(lambda x: loss(parameters, x), (x[0],), (x[1],))[1]
    assert not calls
    for i, part in enumerate(x):
        expected = torch.autograd.grad(loss(parameters, part), parameters.values())
        for key, correct in zip(parameters, expected, strict=True):
            assert_close(grads[key][i], correct, torch.float32, key)
    part = x[0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(parameters, part), part)
    assert_close(tangent, (grad * x[1]).sum(), torch.float32)
    assert calls


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives(name):
    """Forward by the native kernels, and a backward that autograd records by torch's."""
    layer, direction = make_layer(name), torch.randn(4, 12, 5, 5)

    def differentiate_twice():
        x = make_input().requires_grad_()
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        return [first, *torch.autograd.grad((first * direction).sum(), [x, layer.weight, layer.bias])]

    compare(differentiate_twice)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batches_of_gradients(name, training):
    """Forward by the native kernels, and a backward under vmap by torch's."""
    x = make_input().requires_grad_()
    y = make_layer(name).train(training)(x)
    grads = torch.randn(3, *y.shape)
    (actual,) = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)
    for part, grad in zip(actual, grads, strict=True):
        assert_close(part, torch.autograd.grad(y, x, grad, retain_graph=True)[0], torch.float32)


@pytest.mark.parametrize("name", WITHOUT_STATE)
def test_forward_mode(name, calls):
    layer, x = make_layer(name), make_input()
    with torch.autograd.forward_ad.dual_level():
        y = layer(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x).cumsum(0)))
        tangent = torch.autograd.forward_ad.unpack_dual(y).tangent
    assert not calls
    with torch_kernels():
        assert_close(tangent, torch.func.jvp(layer, (x,), (torch.ones_like(x).cumsum(0),))[1], torch.float32)


def test_masks(calls):
    layer, x = make_layer("bw"), make_input()
    mask = torch.rand(4, 5, 5) > 0.3

    def run():
        masked = x.clone().requires_grad_()
        y = layer(masked, mask)
        return [y, *torch.autograd.grad(y.pow(3).sum(), masked)]

    compare(run)
    assert not calls


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("name", LAYERS)
def test_tensor_subclasses(name, calls):
    layer, x = make_layer(name), make_input()
    y = layer(x.as_subclass(Subclass))
    assert not calls
    assert isinstance(y, Subclass)
    assert_close(y.as_subclass(torch.Tensor), make_layer(name)(x), torch.float32)


def test_dispatch_modes(calls):
    layer, x = make_layer("bw-untracked"), make_input()
    with FlopCounterMode(display=False) as counter:
        y = layer(x)
    assert counter.get_total_flops() > 0
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == x.shape
    assert not calls
    assert_close(y, layer(x), torch.float32)


def negate_lazily(x):
    return torch._neg_view(x.neg())


def take_imaginary_part(x):
    """Return x as the imaginary part of a conjugate, every second element of memory and negated on access."""
    return torch.complex(torch.zeros_like(x), x.neg()).conj().imag


LAZY = {
    "negated": negate_lazily,
    "imaginary part": take_imaginary_part,
    "result of a collective": AsyncCollectiveTensor,
    "subclass": lambda x: x.as_subclass(Subclass),
}


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("name", ["bw", "sw5", "iw", "gw"])
@pytest.mark.parametrize("group_of_one", [False, True])
def test_gradients_whose_values_are_not_in_memory(name, kind, group_of_one, calls):
    layer = whitenorm.BatchWhitening(12, 1) if group_of_one and name == "bw" else make_layer(name)
    x, grad = make_input().requires_grad_(), torch.randn(4, 12, 5, 5)
    y = layer(x)
    (actual,) = torch.autograd.grad(y, x, LAZY[kind](grad), retain_graph=True)
    assert torch.equal(actual, torch.autograd.grad(y, x, grad)[0])
    assert calls


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_zeros_without_memory(name):
    x = make_input().requires_grad_()
    (grad,) = torch.autograd.grad(make_layer(name)(x), x, torch._efficientzerotensor(4, 12, 5, 5))
    assert not grad.any()


@pytest.mark.parametrize("kind", ["negated", "imaginary part"])
@pytest.mark.parametrize("group_size", [1, 4])
def test_inputs_and_parameters_whose_values_are_not_in_memory(kind, group_size):
    x, weight, bias = make_input(), torch.randn(12), torch.randn(12)
    function = whitenorm.functional.batch_whitening
    options = {"training": True, "group_size": group_size}
    actual = function(LAZY[kind](x), weight=LAZY[kind](weight), bias=LAZY[kind](bias), **options)
    assert_close(actual, function(x, weight=weight, bias=bias, **options), torch.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_another_default_device(name, calls):
    layer, x = make_layer(name), make_input()
    with torch.device("meta"):
        x = x.requires_grad_()
        y = layer(x)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
    assert y.device.type == grad.device.type == "cpu"
    assert calls


def test_a_default_dtype_of_half_precision():
    layer, x = make_layer("bw"), make_input()
    expected = layer(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(layer(x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_activation_in_place_behind_the_layer():
    for name in LAYERS:
        x = make_input().requires_grad_()
        layer = make_layer(name)
        layer(x).relu_().sum().backward()
        expected = make_input().requires_grad_()
        layer(expected).relu().sum().backward()
        assert torch.equal(x.grad, expected.grad)
