"""Symbolic tracing records a whitening layer as one call, whatever the tracer."""

import copy

import pytest
import torch
from torch import fx, nn

import whitenorm
from tests.helpers.cases import CHANNEL_LAYERS, TOKEN_LAYERS, channel_layers, randomise, token_layers


def make(name):
    layer = {**channel_layers(12), **token_layers(12)}[name]
    return randomise(layer), torch.randn((4, 5, 12) if name in TOKEN_LAYERS else (4, 12, 5, 5))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CHANNEL_LAYERS + TOKEN_LAYERS)
def test_a_layer_is_one_call_of_itself(name, training):
    layer, x = make(name)
    model = nn.Sequential(layer, nn.ReLU(inplace=True)).train(training)
    traced = fx.symbolic_trace(copy.deepcopy(model))
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(traced(x), model(x))
    # The module is in there, with its mode, and goes on learning.
    assert type(traced.get_submodule("0")) is type(layer)
    for buffer, other in zip(traced.buffers(), model.buffers(), strict=True):
        assert torch.equal(buffer, other)


def test_keywords_are_recorded():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(6)

        def forward(self, x, mask):
            return self.norm(input=x, mask=mask)

    model, x, mask = Masked(), torch.randn(4, 6, 5), torch.rand(4, 5) > 0.2
    traced = fx.symbolic_trace(model)
    (call,) = [node for node in traced.graph.nodes if node.op == "call_module"]
    assert set(call.kwargs) == {"input", "mask"}
    assert torch.equal(traced(x, mask), copy.deepcopy(model)(x, mask))


def test_a_subclass_is_traced_as_one_call():
    class Doubled(whitenorm.IterNorm):
        def forward(self, input):
            return 2 * super().forward(input)

    model, x = nn.Sequential(Doubled(6)).eval(), torch.randn(4, 6, 5)
    assert torch.equal(fx.symbolic_trace(model)(x), model(x))


def test_names_of_feature_extraction():
    models = pytest.importorskip("torchvision.models")
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    model = whitenorm.convert_(models.resnet18(num_classes=10), "iternorm", where=["bn1", "layer1"]).eval()
    names, _ = extraction.get_graph_node_names(model)
    assert {"bn1", "layer1.0.bn1", "layer1.1.bn2"} <= set(names)
    features = extraction.create_feature_extractor(model, ["layer1.0.bn1", "layer1"])(torch.randn(2, 3, 32, 32))
    assert {name: tuple(feature.shape) for name, feature in features.items()} == {
        "layer1.0.bn1": (2, 64, 8, 8),
        "layer1": (2, 64, 8, 8),
    }


@pytest.mark.filterwarnings("ignore")
def test_quantization_prepares_the_surrounding_modules():
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    x = torch.randn(4, 3, 12, 12)
    mapping = torch.ao.quantization.get_default_qconfig_mapping("x86")
    prepared = quantize_fx.prepare_fx(copy.deepcopy(model), mapping, (x,))
    assert isinstance(prepared.get_submodule("1"), whitenorm.IterNorm)
    assert torch.allclose(prepared(x), model(x), atol=1e-6)


def test_torchscript_raises_a_helpful_error():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8), nn.ReLU()).eval()
    with pytest.raises(ValueError, match=r"expected torch.jit.trace, .* for IterNorm \(got torch.jit.script"):
        torch.jit.script(model)
    with pytest.raises(ValueError, match="for LayerWhitening"):
        torch.jit.script(whitenorm.LayerWhitening(8))


def test_torchscript_takes_a_folded_model():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 6, 6)
    expected = model(x)
    assert torch.allclose(torch.jit.script(whitenorm.fold_(model))(x), expected, atol=1e-5)
