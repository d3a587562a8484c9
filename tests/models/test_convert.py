"""Conversion of models: which norms are replaced, what carries over, recipes, and errors."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import BatchNormAct2d, FrozenBatchNorm2d, ResNet, count_layers, randomize_norms
from whitenorm import convert_, recipes
from whitenorm.models import WHITENING_NAMES

KINDS = {
    "iternorm": whitenorm.IterNorm,
    "dbn": whitenorm.DecorrelatedBatchNorm,
    "bw-sigma": whitenorm.BatchWhitening,
    "sw": whitenorm.SwitchableWhitening,
    "sw5": whitenorm.SwitchableWhitening,
    "gw": whitenorm.GroupWhitening,
    "iw": whitenorm.InstanceWhitening,
}


@pytest.mark.parametrize("name", WHITENING_NAMES)
def test_every_name(name):
    model = convert_(ResNet(), name)
    assert count_layers(model, KINDS[name]) == 6
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("where", ["all", "l1", "l1+df", "s1-b2"])
@pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma"])
def test_a_trained_batch_norm_gives_the_same_output_in_eval_mode(name, where):
    model = randomize_norms(ResNet()).eval().double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    expected = model(x)
    assert (convert_(model, name, where)(x) - expected).abs().max() < 1e-10
    assert count_layers(model) > 0


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(12), (5, 12)),
        (nn.BatchNorm1d(12), (5, 12, 7)),
        (nn.BatchNorm2d(12), (5, 12, 3, 4)),
        (nn.BatchNorm3d(12), (5, 12, 3, 4, 2)),
        (nn.SyncBatchNorm(12), (5, 12, 3, 4)),
    ],
    ids=str,
)
def test_batch_norms_of_all_dimensions(norm, shape):
    norm = randomize_norms(norm).eval()
    x = torch.randn(shape)
    expected = nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    assert torch.allclose(convert_(norm, "iternorm")(x), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:this model is trained")
def test_group_norm_and_layer_norm():
    model = nn.ModuleDict({"group": nn.GroupNorm(4, 24), "layer": nn.LayerNorm((4, 6)), "plain": nn.LayerNorm(12)})
    model["plain"].bias = None
    nn.init.uniform_(model["layer"].weight)
    weight = model["layer"].weight.clone()
    convert_(model, "gw")
    assert model["group"].num_groups == 4
    assert isinstance(model["layer"], whitenorm.LayerWhitening)
    assert model["layer"].normalized_shape == (4, 6)
    assert model["layer"].num_groups == 4
    assert torch.equal(model["layer"].weight, weight)
    assert model["plain"].bias is None
    assert model["layer"](torch.randn(5, 4, 6)).shape == (5, 4, 6)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def test_a_layer_norm_of_images_becomes_a_layer_of_images():
    model = convert_(nn.Sequential(LayerNorm2d(16)), "gw")
    x = torch.randn(2, 16, 3, 4)
    layer = model[0]
    tokens = whitenorm.functional.group_whitening(x.movedim(1, -1).reshape(-1, 16), layer.num_groups)
    assert torch.allclose(layer(x), tokens.reshape(2, 3, 4, 16).movedim(-1, 1), atol=1e-5)


def test_frozen_batch_norm():
    norm = randomize_norms(FrozenBatchNorm2d(8, eps=1e-3)).eval()
    x = torch.randn(2, 8, 3, 3)
    with pytest.warns(UserWarning, match="the model: a frozen norm becomes one with batch statistics"):
        new = convert_(norm, "dbn")
    assert torch.allclose(new(x), norm(x), atol=1e-5)
    assert not new.weight.requires_grad


def test_state_and_mode_carry_over():
    norm = nn.BatchNorm2d(8, eps=0.1, dtype=torch.float64)
    norm.weight.requires_grad_(False)
    norm.num_batches_tracked.fill_(7)
    model = nn.Sequential(norm.eval())
    layer = convert_(copy.deepcopy(model), "iternorm", keep_eps=True)[0]
    assert (layer.eps, layer.weight.dtype) == (0.1, torch.float64)
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)
    assert not layer.training
    assert layer.num_batches_tracked == 7
    assert convert_(model, "iternorm")[0].eps == whitenorm.IterNorm(8).eps


def test_meta_device_and_no_affine():
    layer = convert_(nn.Sequential(nn.BatchNorm2d(8, affine=False, device="meta")), "iternorm")[0]
    assert layer.weight is None
    assert layer.running_mean.device.type == "meta"


def test_a_norm_without_population_becomes_a_layer_without():
    layer = convert_(nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False)), "iternorm").eval()[0]
    assert layer.running_whitening is None
    assert layer(torch.randn(64, 8, 4, 4) * 7).std() < 1.1


class ChannelsFirst(nn.LayerNorm):
    """A LayerNorm with a data format, like transformers'."""

    def __init__(self, width, data_format):
        super().__init__(width)
        self.data_format = data_format

    def forward(self, x):
        if self.data_format == "channels_last":
            return super().forward(x)
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def test_layer_norms_with_a_data_format():
    for data_format, dim in (("channels_first", 1), ("channels_last", -1)):
        layer = convert_(nn.Sequential(ChannelsFirst(16, data_format)), "gw")[0]
        x = torch.randn(2, 16, 16, 16)
        tokens = whitenorm.functional.group_whitening(x.movedim(dim, -1).reshape(-1, 16), layer.num_groups)
        assert torch.allclose(layer(x), tokens.reshape(2, 16, 16, 16).movedim(-1, dim), atol=1e-5)


class ChannelsFirstByForward(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def test_a_layer_norm_of_unknown_layout_stays():
    model = nn.Sequential(ChannelsFirstByForward(8), nn.BatchNorm2d(8))
    with pytest.warns(UserWarning, match="0: .*ChannelsFirstByForward has a forward of its own; it stays"):
        convert_(model, "gw")
    assert isinstance(model[0], ChannelsFirstByForward)
    assert isinstance(model[1], whitenorm.GroupWhitening)
    with pytest.raises(ValueError, match="layout is known"):
        convert_(model, "gw", ["0"])


@pytest.mark.parametrize("where", ["all", lambda module, name: name.endswith("norm2")])
def test_transformer_layers_use_the_new_norm_at_inference(where):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = convert_(nn.TransformerEncoder(layer, 2), "gw", where).eval()
    x = torch.randn(2, 5, 32)
    expected = model(x)
    with torch.no_grad():
        assert torch.allclose(model(x), expected, atol=1e-5)


def test_group_whitening_of_vectors_has_about_root_c_groups():
    model = convert_(nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64)), "gw")
    assert model[1].num_groups == 8
    assert model(torch.randn(4, 10)).shape == (4, 64)
    model = convert_(ResNet(), "gw", "l1+df")
    assert model(torch.randn(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize("where", ["all", "s1-b2", "sw-cifar"])
def test_every_recipe_can_add_features_before_the_classifier(where):
    without, with_features = (recipes.plan(ResNet(), "bw-sigma", w) for w in (where, f"{where}+df"))
    assert [change.name for change in with_features] == [*(change.name for change in without), "fc"]
    assert isinstance(with_features[-1].new[0], whitenorm.BatchWhitening)


def test_a_shared_module_stays_shared():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(norm, nn.ModuleList([norm]), nn.ReLU())
    convert_(model, "gw")
    assert isinstance(model[0], whitenorm.GroupWhitening)
    assert model[0] is model[1][0]


def test_a_function_as_layer():
    model = convert_(ResNet().double(), lambda width: whitenorm.IterNorm(width, 4, steps=3))
    assert model.bn1.solver.steps == 3
    assert model.bn1.weight.dtype == torch.float64


def test_a_filter():
    model = convert_(ResNet(), "gw", lambda module, name: name.endswith("bn2") and module.num_features == 16)
    assert [name for name, m in model.named_modules() if isinstance(m, whitenorm.GroupWhitening)] == ["blocks.1.bn2"]


def test_group_sizes_fit_each_width():
    model = convert_(nn.ModuleList([nn.BatchNorm2d(width) for width in (24, 96, 100)]), "iternorm")
    assert [layer.group_size for layer in model] == [24, 48, 50]


def test_the_activation_of_a_fused_norm_is_kept():
    norm = randomize_norms(BatchNormAct2d(8)).eval()
    x = torch.randn(2, 8, 3, 3)
    new = convert_(norm, "iternorm")
    assert torch.allclose(new(x), norm(x), atol=1e-5)
    assert new(x).min() == 0


RES_50_LIKE = {"blocks": 4, "norms": 3, "widths": (8, 16, 24, 32)}


@pytest.mark.parametrize(
    ("where", "expected"),
    [("l1", 1), ("s1", 1), ("s1-b1", 17), ("s1-b2", 17), ("s1-b3", 17), ("s1-b12", 33), ("sw-7", 7), ("sw-14", 14)],
)
def test_recipes_on_bottleneck_blocks(where, expected):
    assert count_layers(convert_(ResNet(**RES_50_LIKE), "gw", where)) == expected


def test_recipe_for_cifar():
    plan = recipes.plan(ResNet(blocks=3, widths=(4, 8, 16)), "sw", "sw-cifar")
    assert [change.name for change in plan] == ["bn1", "blocks.1.bn1", "blocks.3.bn1", "blocks.5.bn1", "blocks.7.bn1"]


def test_features_before_the_classifier():
    model = convert_(ResNet(), "iternorm", "l1+df")
    assert isinstance(model.fc, nn.Sequential)
    assert isinstance(model.fc[0], whitenorm.IterNorm)
    assert isinstance(model.fc[1], nn.Linear)
    assert count_layers(model) == 2
    model(torch.randn(4, 3, 8, 8)).sum().backward()


def test_a_plan_is_a_table_and_changes_nothing():
    model = ResNet()
    text = str(recipes.plan(model, "gw", "s1-b2"))
    assert text.splitlines()[0].split() == ["name", "old", "new", "why"]
    assert "blocks.0.bn2" in text
    assert "GroupWhitening(16, 16 groups)" in text
    assert "recipe s1-b2" in text
    assert count_layers(model) == 0


def test_errors():
    with pytest.raises(ValueError, match="expected layer to be one of"):
        convert_(ResNet(), "iternom")
    with pytest.raises(ValueError, match="name or a function"):
        convert_(ResNet(), 3)
    with pytest.raises(ValueError, match="one of its own"):
        convert_(ResNet(), whitenorm.IterNorm(8))
    with pytest.raises(ValueError, match="return a layer for width 8"):
        convert_(ResNet(), lambda width: None)
    with pytest.raises(ValueError, match="for width 8 \\(got IterNorm for 16\\)"):
        convert_(ResNet(), lambda width: whitenorm.IterNorm(16))
    with pytest.raises(ValueError, match="a list of module names or patterns, or a filter"):
        convert_(ResNet(), "gw", 3)
    with pytest.raises(ValueError, match=r"match a norm \(got 'bn7'"):
        convert_(ResNet(), "gw", ["bn1", "bn7"])
    with pytest.raises(ValueError, match="expected a model"):
        convert_([ResNet()], "gw")
    with pytest.raises(ValueError, match="expected where to be one of"):
        convert_(ResNet(), "gw", "s2")
    with pytest.raises(ValueError, match=r"its norms are:\n  bn1: BatchNorm2d"):
        convert_(ResNet(), "gw", lambda module, name: False)
    with pytest.raises(ValueError, match="expected a model with norms \\(got Linear without any"):
        convert_(nn.Linear(2, 2), "gw")
    with pytest.raises(ValueError, match="at least 3 norms"):
        convert_(ResNet(), "gw", "s1-b3")
    with pytest.raises(ValueError, match="ResNet-like model"):
        convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gw", "s1-b2")
    with pytest.raises(ValueError, match="without a linear layer"):
        convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gw", "l1+df")
    with pytest.raises(ValueError, match="a layer for vectors"):
        convert_(ResNet(), "iw", "l1+df")
    with pytest.raises(ValueError, match="run the model once"):
        convert_(nn.LazyBatchNorm2d(), "gw")


def test_a_failing_conversion_leaves_the_model_as_it_was():
    model = ResNet()
    before = copy.deepcopy(model.state_dict())

    def layer(width):
        if width == 16:
            raise RuntimeError("no")
        return whitenorm.IterNorm(width)

    with pytest.raises(RuntimeError, match="no"):
        convert_(model, layer)
    assert count_layers(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", [*WHITENING_NAMES, "bn", "gn", "ln"])
def test_the_same_conversion_twice_changes_nothing_and_warns(name):
    model = ResNet() if name == "bn" else convert_(ResNet(), name)
    layers = list(model.modules())
    assert len(recipes.plan(model, name)) == 0
    with pytest.warns(UserWarning, match="nothing is converted"):
        convert_(model, name)
    assert list(model.modules()) == layers
