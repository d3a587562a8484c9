"""Conversions of instance, RMS and whitening norms, back to plain norms, and before the classifier."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet, randomize_norms
from whitenorm import convert_, recipes
from whitenorm.models import WHITENING_NAMES


class RMSNorm(nn.Module):
    """Llama's norm."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.variance_epsilon = eps

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


class ShiftedRMSNorm(RMSNorm):
    """Gemma's norm, which multiplies by one plus the weight."""

    def forward(self, x):
        return (1 + self.weight) * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


class OtherRMSNorm(RMSNorm):
    def forward(self, x):
        return super().forward(x) * 5


class TestOtherNorms:
    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
    @pytest.mark.parametrize("name", ["iw", "sw", "sw5"])
    def test_instance_norm(self, name, kind, affine):
        norm = kind(8, affine=affine)
        if affine:
            nn.init.uniform_(norm.weight)
        layer = convert_(nn.Sequential(norm), name)[0]
        assert (layer.weight is not None) == affine
        assert not affine or layer.weight is norm.weight
        assert layer(torch.randn(2, 8, *(3,) * int(kind.__name__[-2]))).isfinite().all()
        assert name == "iw" or layer.track_running_stats

    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("kind", [nn.RMSNorm, RMSNorm, ShiftedRMSNorm])
    def test_rms_norm(self, kind):
        norm = kind(16)
        nn.init.uniform_(norm.weight)
        layer = convert_(nn.Sequential(norm), "gw")[0]
        assert isinstance(layer, whitenorm.LayerWhitening)
        assert layer.bias is None
        assert torch.allclose(layer.weight, norm.weight + (1 if kind is ShiftedRMSNorm else 0))
        assert layer(torch.randn(2, 3, 16)).shape == (2, 3, 16)

    def test_an_rms_norm_with_another_forward_is_an_error(self):
        with pytest.raises(ValueError, match="OtherRMSNorm has a forward of its own"):
            convert_(nn.Sequential(OtherRMSNorm(8)), "gw")

    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("old", WHITENING_NAMES)
    @pytest.mark.parametrize("new", WHITENING_NAMES)
    def test_one_whitening_becomes_another(self, old, new):
        model = convert_(randomize_norms(ResNet()), old)
        weight = model.bn1.weight
        if old != new:
            convert_(model, new)
        fresh = convert_(ResNet(), new)
        assert [type(m) for m in model.modules()] == [type(m) for m in fresh.modules()]
        assert model.bn1.weight is weight
        model(torch.randn(4, 3, 8, 8)).sum().backward()

    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("new", ["dbn", "bw-sigma", "iternorm"])
    @pytest.mark.parametrize("old", ["dbn", "bw-sigma", "iternorm"])
    def test_the_population_of_a_whitening_layer_carries_over(self, old, new):
        """The mean stays, and the covariance inside the new groups."""
        model = nn.Sequential(convert_(nn.BatchNorm2d(8), old, group_size=4)).double()
        torch.manual_seed(0)
        for _ in range(100):
            model(torch.randn(64, 8, 4, 4, dtype=torch.float64) * torch.arange(1, 9)[:, None, None] + 3)
        mean = model[0].running_mean.clone()
        layer = convert_(model.eval(), new, group_size=2)[0]
        assert torch.equal(layer.running_mean, mean)
        y = layer(torch.randn(256, 8, 4, 4, dtype=torch.float64) * torch.arange(1, 9)[:, None, None] + 3)
        assert y.var((0, 2, 3)).sub(1).abs().max() < 0.2

    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw"])
    @pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
    def test_back_to_batch_norm(self, kind, name):
        norm = randomize_norms(kind(8, eps=1e-3, momentum=0.2)).eval().double()
        expected = copy.deepcopy(norm)
        back = convert_(convert_(nn.Sequential(norm), name), "bn", eps=1e-3)[0]
        assert type(back) is kind
        assert back.momentum == 0.2
        x = torch.randn(4, 8, *(3,) * int(kind.__name__[-2]), dtype=torch.float64)
        assert torch.allclose(back(x), expected(x), atol=1e-10)

    def test_back_to_group_norm_and_layer_norm(self):
        model = nn.ModuleDict({"group": nn.GroupNorm(4, 24), "layer": nn.LayerNorm((4, 6), bias=False)})
        expected = copy.deepcopy(model)
        convert_(model, "gw")
        convert_(model, "gn", ["group"])
        convert_(model, "ln", ["layer"])
        assert repr(model) == repr(expected)
        assert model.state_dict().keys() == expected.state_dict().keys()

    def test_a_layer_of_unknown_dimensions_becomes_a_batch_norm_of_any(self):
        norm = convert_(nn.Sequential(whitenorm.IterNorm(8)), "bn")[0]
        for shape in ((4, 8), (4, 8, 3), (4, 8, 3, 3)):
            assert norm(torch.randn(shape)).shape == shape

    def test_layer_norm_of_channels_is_group_norm_of_one_group(self):
        norm = convert_(nn.Sequential(whitenorm.IterNorm(8)), "ln")[0]
        assert isinstance(norm, nn.GroupNorm)
        assert norm.num_groups == 1

    def test_recipes_count_converted_norms_too(self):
        model = convert_(ResNet(blocks=3, widths=(4, 8, 16)), "iternorm")
        names = [change.name for change in recipes.plan(model, "gw", "sw-cifar")]
        assert names == ["bn1", "blocks.1.bn1", "blocks.3.bn1", "blocks.5.bn1", "blocks.7.bn1"]


class TestFeaturesBeforeTheClassifier:
    @pytest.mark.parametrize("name", ["bn", "iternorm", "dbn", "bw-sigma", "sw", "gw", "gn", "ln"])
    def test_it_is_the_layer_that_a_batch_norm_would_become(self, name):
        model = convert_(ResNet(), name, "l1+df", eps=1e-2)
        extra = model.fc[0]
        expected = nn.BatchNorm1d(16, eps=1e-2) if name == "bn" else convert_(nn.BatchNorm1d(16), name, eps=1e-2)
        assert repr(extra) == repr(expected)
        assert extra.weight is not None
        assert extra.bias is not None
        model(torch.randn(4, 3, 8, 8)).sum().backward()

    def test_options_reach_it(self):
        model = convert_(ResNet(), "iternorm", "l1+df", group_size=4, affine=False)
        assert (model.fc[0].group_size, model.fc[0].weight) == (4, None)
        assert convert_(ResNet(), "gw", "l1+df", num_groups=2).fc[0].num_groups == 2

    @pytest.mark.parametrize("name", ["bn", "iternorm", "dbn", "bw-sigma"])
    def test_nothing_changes_in_eval_mode(self, name):
        model = randomize_norms(ResNet()).eval().double()
        x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
        expected = model(x)
        assert torch.allclose(convert_(model, name, "l1+df")(x), expected, atol=1e-10)

    def test_it_is_added_once(self):
        model = convert_(ResNet(), "iternorm", "l1+df")
        convert_(model, "dbn", "l1+df")
        assert isinstance(model.fc[0], whitenorm.DecorrelatedBatchNorm)
        assert isinstance(model.fc[1], nn.Linear)
        with pytest.warns(UserWarning, match="nothing is converted"):
            convert_(model, "dbn", "l1+df")

    def test_hooks_of_the_classifier_are_called_once(self):
        model, calls = ResNet(), []
        model.fc.register_forward_hook(lambda module, inputs, output: calls.append(type(module)))
        convert_(model, "iternorm", "l1+df")(torch.randn(4, 3, 8, 8))
        assert calls == [nn.Linear]
