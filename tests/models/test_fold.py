"""Folding keeps the outputs, and leaves no whitening layer where it can be merged."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet, convert_and_train, count_layers, make_iternorm, randomize_whitening
from whitenorm import fold_
from whitenorm.models import ChannelMap


def check_fold(model, x, is_merged=True, warning=None, **options):
    """Fold a copy of the model, check that the outputs stay and whether the layer is merged, and return the copy."""
    model = model.eval().double()
    x = x.double()
    expected = model(x)
    with pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext():
        folded = fold_(copy.deepcopy(model), **options)
    assert (folded(x) - expected).abs().max() < 1e-10 * (1 + expected.abs().max())
    assert count_layers(folded) == 0
    assert any(isinstance(module, nn.Identity) for module in folded.modules()) == is_merged
    return folded


LAYERS = {
    "iternorm": lambda c: whitenorm.IterNorm(c, 4),
    "dbn": lambda c: whitenorm.DecorrelatedBatchNorm(c, 4),
    "bw-sigma": lambda c: whitenorm.BatchWhitening(c, 4, population="covariance"),
    "plain": lambda c: whitenorm.BatchWhitening(c, affine=False),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("producer", "shape"),
    [
        (nn.Conv2d, (2, 6, 9, 9)),
        (nn.Conv1d, (2, 6, 9)),
        (nn.Conv3d, (2, 6, 5, 5, 5)),
        (nn.ConvTranspose2d, (2, 6, 5, 5)),
        (nn.ConvTranspose1d, (2, 6, 5)),
    ],
    ids=str,
)
def test_convolutions(producer, shape, name, bias):
    conv = producer(6, 8, 3, stride=2, bias=bias)
    folded = check_fold(nn.Sequential(conv, randomize_whitening(LAYERS[name](8)), nn.ReLU()), torch.randn(shape))
    assert folded[0].bias is not None


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "circular"])
def test_padding_and_dilation(padding_mode):
    conv = nn.Conv2d(4, 8, 3, padding=2, dilation=2, padding_mode=padding_mode)
    check_fold(nn.Sequential(conv, make_iternorm(8)), torch.randn(2, 4, 9, 9))


def test_linear():
    folded = check_fold(nn.Sequential(nn.Linear(5, 8), make_iternorm(8, 4)), torch.randn(6, 5))
    assert isinstance(folded[0], nn.Linear)


@pytest.mark.parametrize("producer", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize(("groups", "size", "holds"), [(2, 4, True), (2, 2, True), (4, 4, False), (2, 8, False)])
def test_grouped_convolutions(producer, groups, size, holds):
    model = nn.Sequential(producer(8, 8, 3, groups=groups), make_iternorm(8, size))
    x = torch.randn(2, 8, 9, 9)
    folded = check_fold(model, x, is_merged=holds, warning=None if holds else "1: .*dense=True joins them")
    assert folded[0].groups == groups
    if not holds:
        assert isinstance(folded[1], nn.Conv2d)
        assert folded[1].kernel_size == (1, 1)
        assert folded[1].groups == 8 // size
    dense = check_fold(model, x, dense=True)
    assert dense[0].groups == (groups if holds else 8 // size if size > 8 // groups else groups)


def test_dense_folding_joins_as_few_groups_as_possible():
    model = nn.Sequential(nn.Conv2d(12, 12, 3, groups=12), make_iternorm(12, 4))
    assert check_fold(model, torch.randn(2, 12, 5, 5), dense=True)[0].groups == 3


def test_a_layer_without_producer_becomes_a_convolution_or_linear_layer():
    pooled = nn.Sequential(nn.MaxPool2d(2), make_iternorm(8, 4))
    assert isinstance(check_fold(pooled, torch.randn(2, 8, 6, 6), is_merged=False)[1], nn.Conv2d)
    vectors = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), make_iternorm(8, 4))
    assert isinstance(check_fold(vectors, torch.randn(2, 8, 2, 2), is_merged=False)[2], nn.Linear)
    activated = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), make_iternorm(8))
    assert isinstance(check_fold(activated, torch.randn(2, 4, 3, 3), is_merged=False)[2], nn.Conv2d)


@pytest.mark.parametrize("shape", [(3, 8), (3, 8, 5), (3, 8, 4, 5), (3, 8, 2, 3, 4)], ids=str)
def test_a_single_layer_becomes_a_map_of_any_dimensions(shape):
    layer = make_iternorm(8, 4).double()
    x = torch.randn(shape, dtype=torch.float64)
    folded = fold_(layer)
    assert isinstance(folded, ChannelMap)
    assert torch.allclose(folded(x), layer(x))


class Branching(nn.Module):
    """A convolution whose output is also used without the norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), make_iternorm(8)

    def forward(self, x):
        x = self.conv(x)
        return self.norm(x) + x


class TwoNorms(nn.Module):
    """A convolution that is called twice, with one norm per call."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.first, self.second = (
            make_iternorm(4),
            make_iternorm(4, seed=1),
        )

    def forward(self, x):
        return self.second(self.conv(self.first(self.conv(x))))


class SharedNorm(nn.Module):
    """A norm behind two convolutions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), make_iternorm(4)

    def forward(self, x):
        return self.norm(self.a(x)) + self.norm(self.b(x))


class ReadsTheWeight(nn.Module):
    """A convolution whose weight is also used elsewhere."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), make_iternorm(4)

    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv.weight.sum()


@pytest.mark.parametrize(
    ("model", "warning"),
    [
        (Branching, "norm: .*the layer before it is also used elsewhere"),
        (TwoNorms, "first, second: .*the layer before it is called more than once"),
        (SharedNorm, "norm: .*because it is called more than once"),
        (ReadsTheWeight, "norm: .*the model reads the weight of the layer before it"),
    ],
)
def test_shared_and_branching_outputs_are_not_merged(model, warning):
    check_fold(model(), torch.randn(2, 4, 5, 5), is_merged=False, warning=warning)


class Named(nn.Conv2d):
    """A convolution with another name."""


def test_subclasses_without_changes_are_merged_into():
    check_fold(nn.Sequential(Named(4, 8, 1), make_iternorm(8)), torch.randn(2, 4, 5, 5))


@pytest.mark.parametrize(
    "parametrization", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_parametrized_weights_are_not_merged_into(parametrization):
    model = nn.Sequential(parametrization(nn.Conv2d(4, 8, 1)), make_iternorm(8))
    check_fold(
        model, torch.randn(2, 4, 5, 5), is_merged=False, warning="the layer before it has hooks, a parametrization"
    )


class Standardized(nn.Conv2d):
    """A convolution that changes its weight, like weight standardization."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


class StandardizedWithin(nn.Conv2d):
    """A convolution that changes its weight in the method that forward calls."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


@pytest.mark.parametrize("kind", [Standardized, StandardizedWithin])
def test_convolutions_with_another_forward_are_not_merged_into(kind):
    check_fold(
        nn.Sequential(kind(4, 8, 1), make_iternorm(8)),
        torch.randn(2, 4, 5, 5),
        is_merged=False,
    )


def test_a_convolution_with_hooks_is_not_merged_into():
    model = nn.Sequential(nn.Conv2d(4, 8, 1), make_iternorm(8))
    model[0].register_forward_hook(lambda module, inputs, output: None)
    check_fold(model, torch.randn(2, 4, 5, 5), is_merged=False, warning="the layer before it has hooks")


class Untraceable(nn.Module):
    """A model that depends on values, so that it has no symbolic trace."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 1), make_iternorm(8), nn.ReLU())
        self.norm = make_iternorm(8, seed=1)

    def forward(self, x):
        return self.norm(self.body(x)) if x.sum() > 0 else self.body(x)


def test_a_model_that_cannot_be_traced_is_folded_inside():
    folded = check_fold(
        Untraceable(), torch.rand(2, 4, 5, 5), warning=r"norm: .*Untraceable cannot be traced \(TraceError"
    )
    assert isinstance(folded.norm, ChannelMap)
    assert isinstance(folded.body[1], nn.Identity)


class Model(nn.Module):
    """A convolution or linear layer, a whitening layer, and an operation between them."""

    def __init__(self, first, between, features=8):
        super().__init__()
        self.first, self.between, self.norm = first, between, make_iternorm(features, 4)

    def forward(self, x):
        return self.norm(self.between(self.first(x)))


@pytest.mark.parametrize(
    ("first", "between", "shape"),
    [
        (nn.Conv2d(3, 8, 1), lambda y: y.mean((2, 3)), (2, 3, 5, 5)),
        (nn.Conv2d(3, 8, 1), lambda y: y.flatten(2), (2, 3, 2, 4)),
        (nn.Conv1d(3, 8, 1), lambda y: y.mean(-1), (8, 3, 5)),
        (nn.Conv1d(3, 8, 1), lambda y: y.amax(-1), (2, 3, 5)),
        (nn.Conv2d(3, 8, (5, 1)), lambda y: y.squeeze(2), (2, 3, 5, 5)),
        (nn.Linear(5, 8), lambda y: y.transpose(1, 2), (2, 8, 5)),
        (nn.Linear(5, 128), lambda y: y.view(-1, 8, 4, 4), (2, 5)),
        (nn.Linear(5, 128), nn.Unflatten(1, (8, 4, 4)), (2, 5)),
        (nn.Linear(5, 8), nn.functional.relu, (6, 5)),
        (nn.Linear(5, 6), torch.relu, (2, 8, 5)),
    ],
)
def test_operations_between_the_layers(first, between, shape):
    check_fold(Model(first, between), torch.randn(shape), is_merged=False)


def test_a_folded_linear_layer_rejects_more_than_vectors():
    model = fold_(nn.Sequential(nn.Linear(5, 8), make_iternorm(8)).eval())
    with pytest.raises(ValueError, match="expected vectors"):
        model(torch.randn(2, 8, 5))


class OptionalArgument(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), make_iternorm(8)

    def forward(self, x, mask=None):
        y = self.conv(x)
        return self.norm(y) * torch.sigmoid(y) if mask is None else self.norm(y) * mask


def test_the_trace_uses_default_arguments():
    check_fold(
        OptionalArgument(),
        torch.randn(2, 4, 5, 5),
        is_merged=False,
        warning="norm: .*the layer before it is also used elsewhere",
    )


class KeepsOutput(OptionalArgument):
    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x):
        self.seen = self.conv(x)
        return self.norm(self.seen)


def test_the_trace_leaves_no_proxies_in_the_model():
    with pytest.warns(UserWarning, match="norm: .*the model keeps the output of the layer before it"):
        assert fold_(KeepsOutput().eval()).seen is None


def test_a_whitening_with_hooks_stays():
    model = nn.Sequential(nn.Conv2d(4, 8, 1), make_iternorm(8))
    model[1].register_forward_pre_hook(lambda module, inputs: None)
    with pytest.warns(UserWarning, match="nothing is folded:\n  1: stays, because it has hooks"):
        assert count_layers(fold_(model.eval())) == 1


def test_a_convolution_with_a_replaced_forward_is_not_merged_into():
    model = nn.Sequential(nn.Conv2d(4, 8, 1), make_iternorm(8)).double()
    plain = model[0].forward
    model[0].forward = lambda x: plain(x).relu()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    expected = model(x)
    with pytest.warns(UserWarning, match="TypeError|forward of its own"):
        assert torch.allclose(fold_(model)(x), expected)


def test_the_memory_format_of_weights_stays():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), make_iternorm(8)).to(memory_format=torch.channels_last)
    assert fold_(model.eval())[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_map_takes_other_dtypes():
    model = Model(nn.Conv2d(4, 8, 1).bfloat16(), torch.sigmoid).eval()
    assert fold_(model)(torch.randn(2, 4, 3, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma"])
def test_a_residual_network(name):
    folded = check_fold(convert_and_train(ResNet(), name), torch.randn(4, 3, 16, 16))
    assert not any(isinstance(module, (nn.BatchNorm2d, ChannelMap)) for module in [folded.bn1, folded.blocks[0].bn1])
    assert isinstance(folded.bn1, nn.Identity)


def test_layers_with_statistics_of_the_sample_stay():
    model = convert_and_train(ResNet(), "gw")
    expected = model(torch.ones(2, 3, 8, 8))
    with pytest.warns(UserWarning, match="nothing is folded in ResNet: its whitening layers use statistics"):
        assert count_layers(fold_(model)) == 6
    assert torch.equal(model(torch.ones(2, 3, 8, 8)), expected)


def test_a_layer_without_population_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), whitenorm.IterNorm(4, track_running_stats=False)).eval()
    with pytest.warns(UserWarning, match="it keeps no population statistics"):
        assert count_layers(fold_(model)) == 1


def test_training_mode_is_an_error():
    with pytest.raises(ValueError, match="eval mode"):
        fold_(nn.Sequential(nn.Conv2d(3, 4, 1), whitenorm.IterNorm(4)))


def test_frozen_weights_stay_frozen_and_dtypes_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 1, dtype=torch.bfloat16), whitenorm.IterNorm(4, dtype=torch.bfloat16)).eval()
    model[0].requires_grad_(False)
    fold_(model)
    assert model[0].weight.dtype == model[0].bias.dtype == torch.bfloat16
    assert not model[0].weight.requires_grad
    assert not model[0].bias.requires_grad


def test_a_model_without_whitening_is_unchanged_with_a_warning():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    with pytest.warns(UserWarning, match="it has no batch whitening layer; batch_norms=True folds BatchNorms"):
        assert fold_(model) is model
    assert isinstance(model[1], nn.BatchNorm2d)
