"""Checkpoints around a conversion: those from before it, and a record with which its own come back."""

import json

import pytest
import torch
from models import BatchNormAct2d, ResNet, trained
from test_convert import NAMES
from torch import nn

import whitenorm
from whitenorm import conversion_of, convert_, load_converted
from whitenorm.layers.base import Whitening


def trained_batch_norms():
    model = trained(ResNet()).eval().double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    return model, x, model(x)


class TestFromBefore:
    """A BatchNorm state dict, loaded into a converted model."""

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("where", ["all", "l1", "l1+df"])
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma"])
    def test_becomes_the_state_of_the_layers(self, name, where, strict):
        model, x, expected = trained_batch_norms()
        other = convert_(ResNet().double(), name, where).eval()
        missing, unexpected = other.load_state_dict(model.state_dict(), strict=strict)
        assert not missing
        assert not unexpected
        assert (other(x) - expected).abs().max() < 1e-10

    def test_with_the_epsilon_it_was_trained_with(self):
        norm = trained(nn.BatchNorm2d(8, eps=0.1)).eval()
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "iternorm").eval()
        layer.load_state_dict(nn.Sequential(norm).state_dict())
        x = torch.randn(2, 8, 3, 3)
        assert torch.allclose(layer(x), norm(x), atol=1e-5)

    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_gives_a_mix_its_batch_part(self, name):
        state = trained(nn.BatchNorm2d(8)).state_dict()
        layer = convert_(nn.BatchNorm2d(8), name)
        missing, unexpected = layer.load_state_dict(state, strict=False)
        assert set(missing) == {"mean_logits", "cov_logits"}
        assert not unexpected
        assert torch.allclose(layer.running_cov.diagonal(dim1=1, dim2=2).flatten(), state["running_var"], atol=1e-5)

    @pytest.mark.parametrize("name", ["gw", "iw"])
    def test_is_said_to_have_no_place_in_layers_without_population(self, name):
        state = trained(ResNet()).state_dict()
        model = convert_(ResNet(), name)
        with pytest.warns(UserWarning, match="population statistics of BatchNorm in this state dict are left out"):
            model.load_state_dict(state)
        assert torch.equal(model.bn1.weight, state["bn1.weight"])

    def test_of_fused_activations(self):
        norm = trained(BatchNormAct2d(8)).eval()
        model = convert_(nn.Sequential(BatchNormAct2d(8)), "iternorm").eval()
        model.load_state_dict(nn.Sequential(norm).state_dict())
        x = torch.randn(2, 8, 3, 3)
        assert torch.allclose(model(x), norm(x), atol=1e-5)

    def test_of_another_width_is_an_error(self):
        with pytest.raises(RuntimeError, match=r"size mismatch|Missing"):
            convert_(nn.BatchNorm2d(8), "iternorm").load_state_dict(nn.BatchNorm2d(4).state_dict())


class TestRecord:
    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    @pytest.mark.parametrize("name", [name for name in NAMES if name != "iw"])
    def test_a_plain_model_becomes_the_saved_one(self, name, where, tmp_path):
        model = convert_(trained(ResNet()), name, where, eps=1e-2)
        model(torch.randn(8, 3, 16, 16))
        file = tmp_path / "model.pt"
        record = json.loads(json.dumps(conversion_of(model)))
        torch.save({"state_dict": model.state_dict(), "whitenorm": record}, file)
        again = load_converted(ResNet(), file)
        assert repr(again) == repr(model)
        x = torch.randn(4, 3, 16, 16)
        assert torch.equal(again.eval()(x), model.eval()(x))
        assert conversion_of(again) == record

    def test_options_and_solvers_are_in_it(self):
        layers = nn.ModuleList(
            [
                whitenorm.BatchWhitening(8, 4, whitenorm.solvers.Newton(7), bias=False, population="covariance"),
                whitenorm.SwitchableWhitening(8, 2, ("bw", "ln"), tie_weights=True, solver="cholesky", momentum=None),
                whitenorm.LayerWhitening((4, 6), 3, elementwise_affine=False),
            ]
        )
        plain = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.LayerNorm((4, 6))])
        again = load_converted(plain, layers.state_dict(), json.loads(json.dumps(conversion_of(layers))))
        assert repr(again) == repr(layers)

    def test_of_fused_activations(self):
        model = convert_(nn.Sequential(BatchNormAct2d(8)), "iternorm")
        again = load_converted(nn.Sequential(BatchNormAct2d(8)), model.state_dict(), conversion_of(model))
        assert repr(again) == repr(model)

    def test_layers_that_are_already_there_stay(self):
        model = convert_(ResNet(), "iternorm")
        layer = model.bn1
        assert load_converted(model, model.state_dict(), conversion_of(model)).bn1 is layer

    def test_a_model_without_whitening_has_none(self):
        assert conversion_of(ResNet()) == {}

    def test_errors(self):
        model = convert_(ResNet(), "iternorm")
        with pytest.raises(ValueError, match="expected a record of the conversion"):
            load_converted(ResNet(), model.state_dict())
        with pytest.raises(ValueError, match="without bn1, "):
            load_converted(nn.Linear(2, 2), model.state_dict(), conversion_of(model))
        with pytest.raises(ValueError, match="expected a norm at 'conv1'"):
            load_converted(ResNet(), {}, {"conv1": conversion_of(model)["bn1"]})
        with pytest.raises(ValueError, match=r"missing: conv1.weight.*; left over: more"):
            load_converted(ResNet(), {"more": torch.zeros(1)}, conversion_of(model))
        with pytest.raises(ValueError, match="solvers with a name"):
            conversion_of(whitenorm.BatchWhitening(8, solver=lambda cov: cov))

    def test_safetensors(self, tmp_path):
        save = pytest.importorskip("safetensors.torch").save_file
        model = convert_(trained(ResNet()), "bw-sigma")
        file = tmp_path / "model.safetensors"
        save(model.state_dict(), file, metadata={"whitenorm": json.dumps(conversion_of(model))})
        x = torch.randn(4, 3, 8, 8)
        assert torch.equal(load_converted(ResNet(), file).eval()(x), model.eval()(x))


def bert(**options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertConfig(**sizes, vocab_size=20, **options)


@pytest.mark.parametrize("shards", [False, True])
def test_a_transformers_model_comes_back_from_its_folder(shards, tmp_path):
    """Tied weights, which are saved once, and several files included."""
    transformers = pytest.importorskip("transformers")
    model = convert_(transformers.BertForMaskedLM(bert()), "gw", num_groups=2).eval()
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name:
            nn.init.normal_(parameter)
    model.save_pretrained(tmp_path, **({"max_shard_size": "20KB"} if shards else {}))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == shards
    plain = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    assert not any(isinstance(module, whitenorm.LayerWhitening) for module in plain.modules())
    again = load_converted(plain, tmp_path).eval()
    ids = torch.arange(8)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
    fresh = load_converted(transformers.BertForMaskedLM(bert()), tmp_path).eval()
    assert torch.equal(fresh(ids).logits, model(ids).logits)


def test_a_vision_model_with_statistics_comes_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = convert_(trained(transformers.ResNetModel(config)), "iternorm").eval()
    model.save_pretrained(tmp_path)
    again = load_converted(transformers.ResNetModel(config), tmp_path).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(x).pooler_output, model(x).pooler_output)
    assert any(isinstance(module, Whitening) for module in again.modules())


def test_what_is_folded_is_no_longer_in_the_configuration():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = convert_(transformers.ResNetModel(config), "iternorm").eval()
    assert model.config.whitenorm
    with pytest.warns(UserWarning, match="cannot be traced"):
        whitenorm.fold_(model, torch.randn(2, 3, 32, 32))
    assert model.config.whitenorm == {}
