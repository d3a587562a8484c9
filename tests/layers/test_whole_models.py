"""Models of torchvision and timm, whose activations are in place, through compile and export."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.sampling import mark_slow

models = pytest.importorskip("torchvision.models")
timm = pytest.importorskip("timm")

WHOLE = {
    "resnet": lambda: models.resnet18(num_classes=10),
    "mobilenet": lambda: models.mobilenet_v3_small(num_classes=10),
    "efficientnet": lambda: models.efficientnet_b0(num_classes=10),
    "regnet": lambda: models.regnet_y_400mf(num_classes=10),
    "timm resnet": lambda: timm.create_model("resnet18", num_classes=10),
    "timm mobilenet": lambda: timm.create_model("mobilenetv3_small_050", num_classes=10),
}


# Their first layers, with every kind of activation that follows a norm: compiling takes a second a layer.
PARTS = {
    "resnet": lambda model: nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool, model.layer1),
    "mobilenet": lambda model: model.features[:4],
    "efficientnet": lambda model: model.features[:3],
    "regnet": lambda model: nn.Sequential(model.stem, model.trunk_output[:2]),
    "timm resnet": lambda model: nn.Sequential(model.conv1, model.bn1, model.act1, model.layer1),
    "timm mobilenet": lambda model: nn.Sequential(model.conv_stem, model.bn1, model.blocks[:2]),
}


def convert_without_dropout(make):
    torch.manual_seed(0)
    model = whitenorm.convert_(make(), "iternorm")
    for module in model.modules():
        # Nothing random, so that two runs can be compared.
        if isinstance(module, nn.Dropout) or type(module).__name__ in ("StochasticDepth", "DropPath"):
            module.eval().train = lambda mode=True, module=module: module
    return model


def step(model, x):
    output = model(x)
    output.square().mean().backward()
    return output.detach()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", mark_slow(PARTS, sample=["resnet"]))
def test_trains_compiled(name):
    torch._dynamo.reset()
    model = PARTS[name](convert_without_dropout(WHOLE[name]))
    plain, x = copy.deepcopy(model), torch.randn(8, 3, 64, 64)
    actual, expected = step(torch.compile(model, backend="aot_eager"), x), step(plain, x)
    assert torch.allclose(actual, expected, atol=1e-3 * expected.abs().max().item())
    pairs = list(zip(model.parameters(), plain.parameters(), strict=True))
    size = sum(other.grad.square().sum() for _, other in pairs).sqrt()
    error = sum((parameter.grad - other.grad).square().sum() for parameter, other in pairs).sqrt()
    assert error <= 1e-3 * size


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", mark_slow(WHOLE, sample=["resnet"]))
def test_exports(name):
    model = convert_without_dropout(WHOLE[name])
    x = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        model(x)
        expected = model.eval()(x)
    actual = torch.export.export(model, (x,)).module()(x)
    assert torch.allclose(actual, expected, atol=1e-4 * expected.abs().max().item())
