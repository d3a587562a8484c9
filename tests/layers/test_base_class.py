"""`whitenorm.Whitening`, the class that every whitening layer is an instance of."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.cases import channel_layers, randomise, token_layers
from whitenorm.models import LayerWhitening2d

LAYERS = {**channel_layers(12), **token_layers(12), "2d": LayerWhitening2d(12)}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_an_instance(name):
    assert isinstance(LAYERS[name], whitenorm.Whitening)


@pytest.mark.parametrize("plain", [nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.Linear(8, 8)], ids=repr)
def test_nothing_else_is(plain):
    assert not isinstance(plain, whitenorm.Whitening)


@pytest.mark.parametrize("name", LAYERS)
def test_has_the_parts_that_all_share(name):
    layer = randomise(copy.deepcopy(LAYERS[name]))
    layer.reset_parameters()
    assert isinstance(layer.eps, float)
    assert isinstance(layer.solver, whitenorm.solvers.Newton)
    assert layer.weight is None or layer.weight.eq(1).all()
    assert layer.bias is None or layer.bias.eq(0).all()


def test_finds_the_layers_of_a_converted_transformer_and_of_a_converted_convolutional_net():
    transformer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8))
    for model in (transformer, images):
        whitenorm.convert_(model, "gw", num_groups=2)
        assert sum(isinstance(module, whitenorm.Whitening) for module in model.modules()) == 2


def test_a_layer_knows_its_name_in_a_converted_model():
    model = whitenorm.convert_(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), "gw")
    assert model[1].name_in_model == "1"


def test_the_base_class_is_not_a_layer_of_a_record():
    record = {"0": {"layer": "Whitening", "arguments": {}}}
    with pytest.raises(ValueError, match="expected layer to be one of BatchWhitening"):
        whitenorm.load_converted(nn.Sequential(nn.BatchNorm2d(8)), {}, record)


def test_weight_decay_can_leave_out_all_of_its_parameters():
    model = nn.Sequential(nn.Linear(8, 8), whitenorm.SwitchableWhitening(8), nn.Linear(8, 8), whitenorm.IterNorm(8))
    own = [p for m in model.modules() if isinstance(m, whitenorm.Whitening) for p in m.parameters(recurse=False)]
    assert sum(p.numel() for p in own) == 8 * 4 + 2 * 2
    assert all(isinstance(p, torch.Tensor) for p in own)
