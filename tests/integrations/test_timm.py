"""Whitening layers as norms of timm's models, by factory and by name."""

import pickle

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm.models import WHITENING_NAMES, Activated, LayerWhitening2d

timm = pytest.importorskip("timm")
integration = pytest.importorskip("whitenorm.integrations.timm")
norm_layer = integration.norm_layer

# Families with separate norms and with fused activations, with and without eps, momentum or a device.
CONVOLUTIONAL = [
    "resnet18",
    "resnetv2_18",
    "regnety_002",
    "efficientnet_b0",
    "mnasnet_small",
    "densenet121",
    "ese_vovnet19b_slim",
    "cspdarknet53",
    "xception41",
    "repvgg_a0",
    "convnext_atto",
    "fasternet_t0",
]
TOKENS = [
    ("vit_tiny_patch16_224", {"img_size": 64}),
    ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 4}),
    ("mixer_s32_224", {"img_size": 64}),
    ("cait_xxs24_224", {"img_size": 64}),
]


def find_layers(model):
    return [module for module in model.modules() if isinstance(module, whitenorm.Whitening)]


def train_a_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for layer in find_layers(model):
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert model.eval()(x).isfinite().all()


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_a_convolutional_family(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, norm_layer=norm_layer("iternorm"))
    assert len(find_layers(model)) > 10
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    train_a_step(model, torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("name", ["resnet18", "resnetv2_18", "regnety_002", "efficientnet_b0", "ese_vovnet19b_slim"])
def test_a_model_is_the_same_as_a_converted_one(name):
    """This includes the activations that the family fuses with its norms."""
    with torch.device("meta"):
        plain = {} if name != "resnetv2_18" else {"norm_layer": timm.layers.BatchNormAct2d}
        converted = whitenorm.convert_(timm.create_model(name, **plain), "iternorm", group_size=8)
        built = timm.create_model(name, norm_layer=norm_layer("iternorm", group_size=8))
    assert repr(built) == repr(converted)


@pytest.mark.parametrize("method", [*WHITENING_NAMES, "lw2d"])
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_every_method(name, method):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=2, norm_layer=norm_layer(method, eps=1e-3))
    assert all(layer.eps == 1e-3 for layer in find_layers(model))
    train_a_step(model, torch.randn(2, 3, 96, 96))


@pytest.mark.parametrize(("name", "options"), TOKENS, ids=[name for name, _ in TOKENS])
def test_a_family_of_tokens(name, options):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, norm_layer=norm_layer("lw", num_groups=4), **options)
    assert {type(layer) for layer in find_layers(model)} == {whitenorm.LayerWhitening}
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    train_a_step(model, torch.randn(2, 3, 64, 64))


def test_a_family_of_maps_with_layer_norms():
    model = timm.create_model(
        "davit_tiny", num_classes=2, norm_layer=norm_layer("lw2d"), norm_layer_cl=norm_layer("lw")
    )
    assert {type(layer) for layer in find_layers(model)} == {whitenorm.LayerWhitening, LayerWhitening2d}
    train_a_step(model, torch.randn(2, 3, 64, 64))


def test_a_method_for_channels_rejects_tokens():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, norm_layer=norm_layer("gw"))
    with pytest.raises(ValueError, match=r"expected 192 channels in dimension 1 .* for tokens .* use LayerWhitening"):
        model(torch.randn(2, 3, 64, 64))


class TestNormWithActivation:
    def test_has_the_familys_activation(self):
        layer = timm.layers.get_norm_act_layer(norm_layer("iternorm"), nn.SiLU)(8)
        assert isinstance(layer, Activated)
        assert [type(part) for part in layer] == [whitenorm.IterNorm, nn.SiLU]
        x = torch.randn(4, 8, 3, 3)
        torch.testing.assert_close(layer(x), nn.functional.silu(whitenorm.IterNorm(8)(x)))

    def test_has_no_activation_if_none_is_requested(self):
        make = timm.layers.get_norm_act_layer(norm_layer("iternorm"), "relu")
        assert type(make(8, apply_act=False)) is whitenorm.IterNorm
        assert type(timm.layers.get_norm_act_layer(norm_layer("iternorm"), None)(8)) is whitenorm.IterNorm
        assert type(timm.layers.get_norm_layer(norm_layer("iternorm"))(8)) is whitenorm.IterNorm

    def test_has_its_dropout(self):
        make = timm.layers.get_norm_act_layer(norm_layer("iternorm"), "relu")
        assert [type(part) for part in make(8, drop_layer=nn.Dropout2d)][1:] == [nn.Dropout2d, nn.ReLU]
        assert [type(part) for part in make(8, apply_act=False, drop_layer=nn.Dropout2d)][1:] == [nn.Dropout2d]

    def test_activation_options(self):
        make = timm.layers.get_norm_act_layer(norm_layer("iternorm"), nn.LeakyReLU)
        layer = make(8, inplace=False, act_kwargs={"negative_slope": 0.2})
        assert (layer[1].negative_slope, layer[1].inplace) == (0.2, False)


class TestArguments:
    def test_arguments_of_the_family_are_used_unless_options_have_them(self):
        layer = norm_layer("iternorm")(8, eps=1e-3, momentum=0.01, dtype=torch.float64)
        assert (layer.eps, layer.momentum, layer.weight.dtype) == (1e-3, 0.01, torch.float64)
        assert norm_layer("iternorm", eps=1e-4)(8, eps=1e-3).eps == 1e-4

    def test_layers_without_population_ignore_momentum(self):
        for method in ("gw", "iw", "lw"):
            assert norm_layer(method)(8, momentum=0.01, eps=1e-3).eps == 1e-3

    def test_a_device(self):
        assert timm.create_model("resnet18", norm_layer=norm_layer("gw"), device="meta").bn1.weight.is_meta

    def test_group_sizes_fit_each_width(self):
        make = norm_layer("iternorm", group_size=16)
        with pytest.warns(UserWarning, match="group_size=16 does not divide the width 24: group_size=12"):
            assert make(24).group_size == 12
        assert make(32).group_size == 16

    def test_pickles(self):
        assert pickle.loads(pickle.dumps(norm_layer("iternorm", steps=3)))(8).solver.steps == 3

    def test_errors(self):
        with pytest.raises(ValueError, match=r'one of "iternorm", .*"lw2d" \(got \'batchnorm\'\)'):
            norm_layer("batchnorm")
        with pytest.raises(ValueError, match=r"expected options of IterNorm .*\(got groups\)"):
            norm_layer("iternorm", groups=3)
        with pytest.raises(ValueError, match=r"expected options of LayerWhitening with 'lw' \(got steps\)"):
            norm_layer("lw", steps=3)
        with pytest.raises(TypeError, match=r"expected arguments of IterNorm from the model \(got num_groups\)"):
            norm_layer("iternorm")(8, num_groups=2)


class TestRegister:
    @pytest.fixture(autouse=True)
    def register(self, monkeypatch):
        for module, name in (
            (integration.create_norm, "_NORM_MAP"),
            (integration.create_norm_act, "_NORM_ACT_MAP"),
            (integration.create_norm_act, "_NORM_ACT_REQUIRES_ARG"),
        ):
            monkeypatch.setattr(module, name, getattr(module, name).copy())
        integration.register()

    @pytest.mark.parametrize("method", WHITENING_NAMES)
    def test_timm_accepts_every_name(self, method):
        name = method.replace("-", "_")
        plain = timm.layers.create_norm_layer(name, 64)
        assert type(plain) is type(norm_layer(method)(64))
        fused = timm.layers.create_norm_act_layer(name.replace("_", ""), 64, act_layer="silu")
        assert type(fused[0]) is type(plain)
        assert isinstance(fused[1], nn.SiLU)

    def test_a_model_accepts_a_name(self):
        model = timm.create_model("resnet18", norm_layer="iternorm")
        assert len(find_layers(model)) == 20
        model = timm.create_model("vit_tiny_patch16_224", norm_layer="lw")
        assert len(find_layers(model)) == 25

    def test_registering_twice_changes_nothing(self):
        integration.register()
        assert timm.layers.create_norm_act_layer("iternorm", 8, "relu")[0].num_features == 8
