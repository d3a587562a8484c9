"""Options of a conversion, group sizes that do not fit, and layers of small feature maps."""

import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet
from whitenorm import convert_, recipes
from whitenorm.models import WHITENING_NAMES


def collect_warning(function, *args, **options):
    """Call a function, and return its result and the text of its only warning, or an empty string."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **options)
    assert len(caught) <= 1, [str(w.message) for w in caught]
    return result, str(caught[0].message) if caught else ""


class TestWarnings:
    def test_tokens_with_a_method_for_channels(self):
        model = nn.ModuleDict({"norm1": nn.LayerNorm(16), "norm2": nn.LayerNorm(16), "bn": nn.BatchNorm2d(16)})
        assert '"iternorm" is for channels' in str(recipes.plan(model, "iternorm"))
        converted, text = collect_warning(convert_, model, "iternorm")
        assert isinstance(converted["norm1"], whitenorm.LayerWhitening)
        assert "norm1, norm2: " in text
        assert "where=" in text
        assert "bn:" not in text

    def test_tokens_with_a_method_for_tokens(self):
        assert collect_warning(convert_, nn.ModuleList([nn.LayerNorm(16)]), "gw")[1] == ""

    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw", "iw", "gw"])
    def test_a_width_without_divisors(self, name):
        model = nn.ModuleDict({"odd": nn.BatchNorm2d(67), "even": nn.BatchNorm2d(96)})
        assert "does not divide the width 67" in str(recipes.plan(model, name))
        _, text = collect_warning(convert_, model, name)
        assert "odd: " in text
        assert "even" not in text

    def test_many_layers_give_one_short_warning(self):
        _, text = collect_warning(convert_, nn.ModuleList([nn.LayerNorm(8) for _ in range(50)]), "dbn")
        assert "42 more" in text
        assert len(text) < 600

    def test_a_group_norm_keeps_its_groups(self):
        model, text = collect_warning(convert_, nn.ModuleList([nn.GroupNorm(32, 128), nn.GroupNorm(8, 24)]), "gw")
        assert [layer.num_groups for layer in model] == [32, 8]
        assert text == ""

    def test_a_group_norm_with_one_group_is_warned_about(self):
        model, text = collect_warning(convert_, nn.ModuleList([nn.GroupNorm(1, 24)]), "gw")
        assert model[0].num_groups == 1
        assert "GroupNorm of one group" in text
        assert collect_warning(convert_, model, "gw", num_groups=4)[0][0].num_groups == 4

    def test_a_group_size_that_divides_only_some_widths(self):
        model = nn.ModuleDict({"a": nn.BatchNorm2d(64), "b": nn.BatchNorm2d(24)})
        converted, text = collect_warning(convert_, model, "iternorm", group_size=16)
        assert (converted["a"].group_size, converted["b"].group_size) == (16, 12)
        assert "b: group_size=16 does not divide the width 24: group_size=12" in text
        assert "a: " not in text


class TestOptions:
    def test_options_of_every_name(self):
        def make(name, **options):
            return convert_(nn.Sequential(nn.BatchNorm2d(64)), name, **options)[0]

        iternorm = make("iternorm", steps=7, group_size=32, eps=1e-4, momentum=0.02)
        assert (iternorm.solver.steps, iternorm.group_size, iternorm.eps, iternorm.momentum) == (7, 32, 1e-4, 0.02)
        assert make("dbn", solver="pca", bias=False).bias is None
        assert make("bw-sigma", solver="newton").solver == whitenorm.solvers.Newton()
        assert make("bw-sigma").solver == whitenorm.solvers.ZCA()
        assert make("sw", statistics=("bw", "ln"), tie_weights=True).cov_logits is None
        assert make("gw", num_groups=8).num_groups == 8
        assert make("iw", affine=False).weight is None
        assert make("bn", momentum=None).momentum is None
        assert make("gn", num_groups=4).num_groups == 4
        assert make("ln", bias=False).bias is None
        assert make("iternorm", group_size=None).group_size == 64

    def test_options_of_tokens(self):
        layer, text = collect_warning(convert_, nn.LayerNorm(16), "iternorm", steps=3, group_size=8, affine=False)
        assert layer.solver == whitenorm.solvers.Newton(3)
        assert layer.weight is None
        assert "without group_size" in text
        assert convert_(nn.LayerNorm(16), "gw", num_groups=2, eps=1e-2).eps == 1e-2

    @pytest.mark.parametrize("name", WHITENING_NAMES)
    def test_an_unknown_option_lists_the_known_ones(self, name):
        with pytest.raises(ValueError, match=r"expected options of .*eps.* \(got stpes\)"):
            convert_(ResNet(), name, stpes=7)

    def test_a_function_takes_no_options(self):
        with pytest.raises(ValueError, match=r"no options beside a function \(got steps\)"):
            convert_(ResNet(), lambda width: whitenorm.IterNorm(width), steps=7)

    def test_a_plan_takes_options(self):
        assert recipes.plan(ResNet(), "gw", "l1", num_groups=4)[0].new.num_groups == 4


def test_where_takes_names_patterns_and_modules_around_norms():
    model = ResNet()
    names = [change.name for change in recipes.plan(model, "gw", ["bn1", "blocks.*.bn2"])]
    assert names == ["bn1", "blocks.0.bn2", "blocks.1.bn2"]
    inside = [change.name for change in recipes.plan(model, "gw", ("blocks.1",))]
    assert inside == ["blocks.1.bn1", "blocks.1.bn2", "blocks.1.shortcut.1"]


class TestSmallMaps:
    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_switchable_whitening_of_single_positions(self, name):
        """Only statistics that exist are mixed, here those of the batch."""
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8)), name, group_size=4)[0].double()
        nn.init.normal_(layer.mean_logits)
        nn.init.normal_(layer.cov_logits)
        x = torch.randn(32, 8, 1, 1, dtype=torch.float64)
        available = [i for i, statistic in enumerate(layer.statistics) if statistic in ("bw", "bn", "ln")]
        expected = whitenorm.functional.switchable_whitening(
            x,
            layer.mean_logits[available],
            layer.cov_logits[available],
            training=True,
            statistics=tuple(layer.statistics[i] for i in available),
            group_size=4,
        )
        assert torch.allclose(layer(x), expected)
        layer(x).square().sum().backward()
        missing = [i for i in range(len(layer.statistics)) if i not in available]
        assert not layer.mean_logits.grad[missing].any()
        assert layer.eval()(x[:1]).isfinite().all()

    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_a_network_whose_last_maps_are_single_pixels(self, name):
        model = convert_(ResNet(widths=(8, 16, 24)), name)
        assert model(torch.randn(8, 3, 4, 4)).isfinite().all()

    def test_instance_whitening_raises_an_error_with_the_layers_name(self):
        model = convert_(ResNet(widths=(8, 16, 24)), "iw")
        with pytest.raises(ValueError, match=r"InstanceWhitening at 'blocks.2.bn1'.*where="):
            model(torch.randn(8, 3, 4, 4))
