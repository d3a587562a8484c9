"""Conversions as they were asked for: options, places, norms of every kind, the way back, and what is said."""

import copy
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet, trained
from whitenorm import convert_, recipes

NAMES = ["iternorm", "dbn", "bw-sigma", "sw", "sw5", "gw", "iw"]


def said(function, *args, **options):
    """What a conversion gives, and the one warning it is allowed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **options)
    assert len(caught) <= 1, [str(w.message) for w in caught]
    return result, str(caught[0].message) if caught else ""


class TestNothingSilentlyElse:
    def test_tokens_by_the_name_of_a_channel_method(self):
        model = nn.ModuleDict({"norm1": nn.LayerNorm(16), "norm2": nn.LayerNorm(16), "bn": nn.BatchNorm2d(16)})
        text = str(recipes.plan(model, "iternorm"))
        assert '"iternorm" is for channels' in text
        converted, words = said(convert_, model, "iternorm")
        assert isinstance(converted["norm1"], whitenorm.LayerWhitening)
        assert "norm1, norm2: " in words
        assert "where=" in words
        assert "bn:" not in words

    def test_tokens_by_the_name_of_their_own_method(self):
        assert said(convert_, nn.ModuleList([nn.LayerNorm(16)]), "gw")[1] == ""

    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw", "iw", "gw"])
    def test_a_width_without_divisors(self, name):
        model = nn.ModuleDict({"odd": nn.BatchNorm2d(67), "even": nn.BatchNorm2d(96)})
        assert "does not divide the width 67" in str(recipes.plan(model, name))
        _, words = said(convert_, model, name)
        assert "odd: " in words
        assert "even" not in words

    def test_many_layers_are_one_warning_of_a_few_lines(self):
        _, words = said(convert_, nn.ModuleList([nn.LayerNorm(8) for _ in range(50)]), "dbn")
        assert "42 more" in words
        assert len(words) < 600

    def test_a_group_norm_keeps_its_groups(self):
        model, words = said(convert_, nn.ModuleList([nn.GroupNorm(32, 128), nn.GroupNorm(8, 24)]), "gw")
        assert [layer.num_groups for layer in model] == [32, 8]
        assert words == ""

    def test_a_group_norm_of_one_group_would_not_be_whitened(self):
        model, words = said(convert_, nn.ModuleList([nn.GroupNorm(1, 24)]), "gw")
        assert model[0].num_groups == 1
        assert "GroupNorm of one group" in words
        assert said(convert_, model, "gw", num_groups=4)[0][0].num_groups == 4

    def test_one_wish_for_all_widths_names_those_it_does_not_divide(self):
        model = nn.ModuleDict({"a": nn.BatchNorm2d(64), "b": nn.BatchNorm2d(24)})
        converted, words = said(convert_, model, "iternorm", group_size=16)
        assert (converted["a"].group_size, converted["b"].group_size) == (16, 12)
        assert "b: group_size=16 does not divide the width 24: group_size=12" in words
        assert "a: " not in words


class TestOptions:
    def test_of_every_name(self):
        def layer(name, **options):
            return convert_(nn.Sequential(nn.BatchNorm2d(64)), name, **options)[0]

        made = layer("iternorm", steps=7, group_size=32, eps=1e-4, momentum=0.02)
        assert (made.solver.steps, made.group_size, made.eps, made.momentum) == (7, 32, 1e-4, 0.02)
        assert layer("dbn", solver="pca", bias=False).bias is None
        assert layer("bw-sigma", solver="newton").solver == whitenorm.solvers.Newton()
        assert layer("bw-sigma").solver == whitenorm.solvers.ZCA()
        assert layer("sw", statistics=("bw", "ln"), tie_weights=True).cov_logits is None
        assert layer("gw", num_groups=8).num_groups == 8
        assert layer("iw", affine=False).weight is None
        assert layer("bn", momentum=None).momentum is None
        assert layer("gn", num_groups=4).num_groups == 4
        assert layer("ln", bias=False).bias is None
        assert layer("iternorm", group_size=None).group_size == 64

    def test_of_tokens(self):
        layer, words = said(convert_, nn.LayerNorm(16), "iternorm", steps=3, group_size=8, affine=False)
        assert layer.solver == whitenorm.solvers.Newton(3)
        assert layer.weight is None
        assert "without group_size" in words
        assert convert_(nn.LayerNorm(16), "gw", num_groups=2, eps=1e-2).eps == 1e-2

    @pytest.mark.parametrize("name", NAMES)
    def test_an_unknown_one_lists_the_known(self, name):
        with pytest.raises(ValueError, match=r"expected options of .*eps.* \(got stpes\)"):
            convert_(ResNet(), name, stpes=7)

    def test_a_function_takes_none(self):
        with pytest.raises(ValueError, match=r"no options beside a function \(got steps\)"):
            convert_(ResNet(), lambda width: whitenorm.IterNorm(width), steps=7)

    def test_a_plan_takes_them_too(self):
        assert recipes.plan(ResNet(), "gw", "l1", num_groups=4)[0].new.num_groups == 4


class TestWhere:
    def test_names_patterns_and_what_lies_inside(self):
        model = ResNet()
        names = [change.name for change in recipes.plan(model, "gw", ["bn1", "blocks.*.bn2"])]
        assert names == ["bn1", "blocks.0.bn2", "blocks.1.bn2"]
        inside = [change.name for change in recipes.plan(model, "gw", ("blocks.1",))]
        assert inside == ["blocks.1.bn1", "blocks.1.bn2", "blocks.1.shortcut.1"]


class TestWhatCarriesOver:
    @pytest.mark.parametrize("momentum", [0.03, None])
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw", "sw5"])
    def test_momentum(self, name, momentum):
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8, momentum=momentum)), name)[0]
        assert layer.momentum == momentum

    def test_hooks_and_the_handles_that_remove_them(self):
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

    def test_an_optimizer_made_before_trains_the_new_layer(self):
        model = ResNet()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        convert_(model, "iternorm")
        before = copy.deepcopy(model.bn1.weight)
        model(torch.randn(4, 3, 8, 8)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(model.bn1.weight, before)

    def test_a_bias_alone(self):
        norm = nn.BatchNorm2d(4)
        norm.register_parameter("weight", None)
        nn.init.constant_(norm.bias, 3.0)
        layer = convert_(nn.Sequential(norm), "iternorm")[0]
        assert layer(torch.randn(8, 4, 3, 3)).mean().item() == pytest.approx(3, abs=1e-4)
        assert not layer.weight.requires_grad

    @pytest.mark.parametrize("frozen", [True, False])
    @pytest.mark.parametrize("name", NAMES)
    def test_what_is_frozen_stays_frozen(self, name, frozen):
        """Parameters that the norm did not have included, such as SW's logits."""
        norm = nn.BatchNorm2d(8).requires_grad_(not frozen)
        layer = convert_(nn.Sequential(norm), name)[0]
        assert {parameter.requires_grad for parameter in layer.parameters()} == {not frozen}

    def test_a_norm_that_is_frozen_in_part(self):
        norm = nn.BatchNorm2d(8)
        norm.weight.requires_grad_(False)
        layer = convert_(nn.Sequential(norm), "sw")[0]
        assert not layer.weight.requires_grad
        assert layer.bias.requires_grad
        assert layer.mean_logits.requires_grad

    def test_new_parameters_of_a_norm_without_any_are_learned(self):
        layer = convert_(nn.Sequential(nn.InstanceNorm2d(8)), "iw", affine=True)[0]
        assert layer.weight.requires_grad
        assert layer.bias.requires_grad

    @pytest.mark.parametrize("first", [*NAMES, "gn", "bn"])
    @pytest.mark.parametrize("second", [*NAMES, "bn"])
    def test_a_norm_without_parameters_has_the_models_dtype(self, first, second):
        if first == second:
            return
        model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8)).double()
        convert_(convert_(model, first), second)
        assert {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()} == {torch.float64}
        assert model(torch.randn(4, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64

    @pytest.mark.parametrize("second", ["iternorm", "dbn", "bw-sigma", "sw", "bn"])
    def test_nor_is_it_forgotten_where_nothing_else_tells_it(self, second):
        norm = convert_(convert_(nn.BatchNorm2d(8, affine=False).double(), "gw"), second)
        assert norm.running_mean.dtype == torch.float64
        assert norm(torch.randn(4, 8, 5, 5, dtype=torch.float64)).dtype == torch.float64


def batch_norm_of_spread(exponent, eps):
    """A trained BatchNorm whose variances are up to ten to the exponent apart."""
    generator = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(16, eps=eps).eval()
    with torch.no_grad():
        norm.running_var.copy_(10 ** torch.linspace(-exponent / 2, exponent / 2, 16))
        norm.running_mean.copy_(norm.running_var.sqrt() * torch.randn(16, generator=generator))
        norm.weight.normal_(generator=generator)
        norm.bias.normal_(generator=generator)
    return norm


KEEPING = [("iternorm", {}), ("dbn", {}), ("dbn", {"solver": "pca"}), ("dbn", {"population": "covariance"})]
KEEPING += [("bw-sigma", {}), ("bw-sigma", {"solver": "cholesky"}), ("bw-sigma", {"group_size": 4}), ("bn", {})]


@pytest.mark.parametrize("exponent", [3, 7, 9, 14])
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
@pytest.mark.parametrize(("name", "options"), KEEPING)
def test_the_output_is_kept_however_far_apart_variances_are(name, options, eps, exponent):
    norm = batch_norm_of_spread(exponent, eps)
    x = torch.randn(4, 16, 5, 5) * norm.running_var.sqrt()[:, None, None] + norm.running_mean[:, None, None]
    with torch.no_grad():
        expected = copy.deepcopy(norm).double()(x.double())
        model = nn.Sequential(copy.deepcopy(norm))
        if name == "bn":
            convert_(model, "bw-sigma")
        # A change would be warned of, and warnings are errors.
        layer = convert_(model, name, **options)[0].eval()
        torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=2e-5)
        double = convert_(nn.Sequential(norm.double()), name, eps=eps, **options)[0].eval() if name != "bn" else None
        if double is not None:
            torch.testing.assert_close(double(x.double()), expected, rtol=1e-9, atol=1e-9)


def test_a_variance_that_float32_cannot_hold_beside_the_new_epsilon_is_told():
    norm = batch_norm_of_spread(18, 0.0)
    with pytest.warns(UserWarning, match="output in eval mode changes"):
        convert_(nn.Sequential(copy.deepcopy(norm)), "dbn", population="covariance")
    layer = convert_(nn.Sequential(copy.deepcopy(norm)), "dbn", population="covariance", keep_eps=True)[0]
    x = torch.randn(4, 16, 5, 5) * norm.running_var.sqrt()[:, None, None]
    torch.testing.assert_close(layer.eval()(x), norm(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", ["zca", "cholesky"])
def test_infinite_and_missing_variances_of_a_population_are_not_hidden(solver):
    for value in (torch.inf, torch.nan):
        cov = torch.diag_embed(torch.tensor([[1.0, 1.0], [value, 1.0]]))
        whitening = whitenorm.functional.population_whitening(cov, 1e-5, solver)
        assert whitening[0].isfinite().all()
        assert whitening[1].isnan().any()
    zero = whitenorm.functional.population_whitening(torch.zeros(1, 2, 2), 0.0, solver)
    assert zero.isfinite().all()


class RMSNorm(nn.Module):
    """As in Llama."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.variance_epsilon = eps

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


class ShiftedRMSNorm(RMSNorm):
    """As in Gemma: the weight is what is added to one."""

    def forward(self, x):
        return (1 + self.weight) * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


class OtherRMSNorm(RMSNorm):
    def forward(self, x):
        return super().forward(x) * 5


class TestMoreNorms:
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

    def test_an_rms_norm_that_does_something_else_is_an_error(self):
        with pytest.raises(ValueError, match="OtherRMSNorm has a forward of its own"):
            convert_(nn.Sequential(OtherRMSNorm(8)), "gw")

    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("old", NAMES)
    @pytest.mark.parametrize("new", NAMES)
    def test_one_whitening_becomes_another(self, old, new):
        model = convert_(trained(ResNet()), old)
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
    def test_the_population_goes_with_it(self, old, new):
        """A trained whitening keeps its mean, and as much of its covariance as the new groups hold."""
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
        norm = trained(kind(8, eps=1e-3, momentum=0.2)).eval().double()
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

    def test_layers_made_by_hand_become_norms_of_any_dimensions(self):
        norm = convert_(nn.Sequential(whitenorm.IterNorm(8)), "bn")[0]
        for shape in ((4, 8), (4, 8, 3), (4, 8, 3, 3)):
            assert norm(torch.randn(shape)).shape == shape

    def test_channels_by_the_name_of_layer_norm(self):
        norm = convert_(nn.Sequential(whitenorm.IterNorm(8)), "ln")[0]
        assert isinstance(norm, nn.GroupNorm)
        assert norm.num_groups == 1

    def test_recipes_count_converted_norms_too(self):
        model = convert_(ResNet(blocks=3, widths=(4, 8, 16)), "iternorm")
        names = [change.name for change in recipes.plan(model, "gw", "sw-cifar")]
        assert names == ["bn1", "blocks.1.bn1", "blocks.3.bn1", "blocks.5.bn1", "blocks.7.bn1"]


class TestFeaturesBeforeTheClassifier:
    @pytest.mark.parametrize("name", ["bn", "iternorm", "dbn", "bw-sigma", "sw", "gw", "gn", "ln"])
    def test_one_rule_for_all(self, name):
        """The norm that BatchNorm1d of that width would become, with γ and β."""
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
        model = trained(ResNet()).eval().double()
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


class TestSmallMaps:
    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_switchable_whitening_of_single_positions(self, name):
        """Uses what exists: here the batch's statistics, with the weights of these alone."""
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8)), name, group_size=4)[0].double()
        nn.init.normal_(layer.mean_logits)
        nn.init.normal_(layer.cov_logits)
        x = torch.randn(32, 8, 1, 1, dtype=torch.float64)
        exist = [i for i, statistic in enumerate(layer.statistics) if statistic in ("bw", "bn", "ln")]
        expected = whitenorm.functional.switchable_whitening(
            x,
            layer.mean_logits[exist],
            layer.cov_logits[exist],
            training=True,
            statistics=tuple(layer.statistics[i] for i in exist),
            group_size=4,
        )
        assert torch.allclose(layer(x), expected)
        layer(x).square().sum().backward()
        missing = [i for i in range(len(layer.statistics)) if i not in exist]
        assert not layer.mean_logits.grad[missing].any()
        assert layer.eval()(x[:1]).isfinite().all()

    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_a_network_whose_last_maps_are_single_pixels(self, name):
        model = convert_(ResNet(widths=(8, 16, 24)), name)
        assert model(torch.randn(8, 3, 4, 4)).isfinite().all()

    def test_instance_whitening_says_where_and_what_to_do(self):
        model = convert_(ResNet(widths=(8, 16, 24)), "iw")
        with pytest.raises(ValueError, match=r"InstanceWhitening at 'blocks.2.bn1'.*where="):
            model(torch.randn(8, 3, 4, 4))
