"""State that a conversion transfers: parameters, hooks, dtype, and populations with which the output stays."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet
from whitenorm import convert_
from whitenorm.models import WHITENING_NAMES


class TestTransfer:
    @pytest.mark.parametrize("momentum", [0.03, None])
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw", "sw5"])
    def test_momentum(self, name, momentum):
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8, momentum=momentum)), name)[0]
        assert layer.momentum == momentum

    def test_hooks_and_their_handles(self):
        norm, calls = nn.BatchNorm2d(4), []
        handles = [
            norm.register_forward_hook(lambda module, inputs, output: calls.append(("forward", type(module)))),
            norm.register_forward_pre_hook(
                lambda module, args, kwargs: calls.append(("pre", len(args))), with_kwargs=True
            ),
            norm.register_full_backward_hook(lambda module, grads, outputs: calls.append(("backward", len(grads)))),
        ]
        model = convert_(nn.Sequential(norm), "iternorm")
        model(torch.randn(4, 4, 3, 3, requires_grad=True)).sum().backward()
        assert calls == [("pre", 1), ("forward", whitenorm.IterNorm), ("backward", 1)]
        for handle in handles:
            handle.remove()
        model(torch.randn(4, 4, 3, 3))
        assert len(calls) == 3

    def test_an_optimizer_from_before_trains_the_new_layer(self):
        model = ResNet()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        convert_(model, "iternorm")
        before = copy.deepcopy(model.bn1.weight)
        model(torch.randn(4, 3, 8, 8)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(model.bn1.weight, before)

    def test_a_bias_without_weight(self):
        norm = nn.BatchNorm2d(4)
        norm.register_parameter("weight", None)
        nn.init.constant_(norm.bias, 3.0)
        layer = convert_(nn.Sequential(norm), "iternorm")[0]
        assert layer(torch.randn(8, 4, 3, 3)).mean().item() == pytest.approx(3, abs=1e-4)
        assert not layer.weight.requires_grad

    @pytest.mark.parametrize("is_frozen", [True, False])
    @pytest.mark.parametrize("name", WHITENING_NAMES)
    def test_a_frozen_norm_becomes_a_frozen_layer(self, name, is_frozen):
        """This includes parameters that the norm does not have, such as SW's logits."""
        norm = nn.BatchNorm2d(8).requires_grad_(not is_frozen)
        layer = convert_(nn.Sequential(norm), name)[0]
        assert {parameter.requires_grad for parameter in layer.parameters()} == {not is_frozen}

    def test_a_partly_frozen_norm(self):
        norm = nn.BatchNorm2d(8)
        norm.weight.requires_grad_(False)
        layer = convert_(nn.Sequential(norm), "sw")[0]
        assert not layer.weight.requires_grad
        assert layer.bias.requires_grad
        assert layer.mean_logits.requires_grad

    def test_new_parameters_of_a_norm_without_parameters_are_learned(self):
        layer = convert_(nn.Sequential(nn.InstanceNorm2d(8)), "iw", affine=True)[0]
        assert layer.weight.requires_grad
        assert layer.bias.requires_grad

    @pytest.mark.parametrize("first", [*WHITENING_NAMES, "gn", "bn"])
    @pytest.mark.parametrize("second", [*WHITENING_NAMES, "bn"])
    def test_a_norm_without_parameters_has_the_models_dtype(self, first, second):
        if first == second:
            return
        model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8)).double()
        convert_(convert_(model, first), second)
        assert {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} == {torch.float64}
        assert model(torch.randn(4, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64

    @pytest.mark.parametrize("second", ["iternorm", "dbn", "bw-sigma", "sw", "bn"])
    def test_a_model_without_other_tensors_keeps_its_dtype(self, second):
        norm = convert_(convert_(nn.BatchNorm2d(8, affine=False).double(), "gw"), second)
        assert norm.running_mean.dtype == torch.float64
        assert norm(torch.randn(4, 8, 5, 5, dtype=torch.float64)).dtype == torch.float64


def make_batch_norm(exponent, eps):
    """Make a trained BatchNorm whose variances differ by up to ten to the exponent."""
    generator = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(16, eps=eps).eval()
    with torch.no_grad():
        norm.running_var.copy_(10 ** torch.linspace(-exponent / 2, exponent / 2, 16))
        norm.running_mean.copy_(norm.running_var.sqrt() * torch.randn(16, generator=generator))
        norm.weight.normal_(generator=generator)
        norm.bias.normal_(generator=generator)
    return norm


OUTPUT_KEEPING = [("iternorm", {}), ("dbn", {}), ("dbn", {"solver": "pca"}), ("dbn", {"population": "covariance"})]
OUTPUT_KEEPING += [("bw-sigma", {}), ("bw-sigma", {"solver": "cholesky"}), ("bw-sigma", {"group_size": 4}), ("bn", {})]


@pytest.mark.parametrize("exponent", [3, 7, 9, 14])
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
@pytest.mark.parametrize(("name", "options"), OUTPUT_KEEPING)
def test_the_output_stays_for_variances_of_any_spread(name, options, eps, exponent):
    norm = make_batch_norm(exponent, eps)
    x = torch.randn(4, 16, 5, 5) * norm.running_var.sqrt()[:, None, None] + norm.running_mean[:, None, None]
    with torch.no_grad():
        expected = copy.deepcopy(norm).double()(x.double())
        model = nn.Sequential(copy.deepcopy(norm))
        if name == "bn":
            convert_(model, "bw-sigma")
        # A changed output gives a warning, which is an error here.
        layer = convert_(model, name, **options)[0].eval()
        torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=2e-5)
        if name != "bn":
            double = convert_(nn.Sequential(norm.double()), name, eps=eps, **options)[0].eval()
            torch.testing.assert_close(double(x.double()), expected, rtol=1e-9, atol=1e-9)


def test_a_variance_that_float32_loses_beside_the_new_epsilon_is_warned_about():
    norm = make_batch_norm(18, 0.0)
    with pytest.warns(UserWarning, match="output in eval mode changes"):
        convert_(nn.Sequential(copy.deepcopy(norm)), "dbn", population="covariance")
    layer = convert_(nn.Sequential(copy.deepcopy(norm)), "dbn", population="covariance", keep_eps=True)[0]
    x = torch.randn(4, 16, 5, 5) * norm.running_var.sqrt()[:, None, None]
    torch.testing.assert_close(layer.eval()(x), norm(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", ["zca", "cholesky"])
def test_infinite_and_nan_covariances_give_nan(solver):
    for value in (torch.inf, torch.nan):
        cov = torch.diag_embed(torch.tensor([[1.0, 1.0], [value, 1.0]]))
        whitening = whitenorm.functional.population_whitening(cov, 1e-5, solver)
        assert whitening[0].isfinite().all()
        assert whitening[1].isnan().any()
    zero = whitenorm.functional.population_whitening(torch.zeros(1, 2, 2), 0.0, solver)
    assert zero.isfinite().all()
