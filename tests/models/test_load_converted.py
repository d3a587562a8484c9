"""Loading of converted models: states that do not fit, what loading keeps, and folders of transformers."""

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import BatchNormAct2d, ResNet, assert_unchanged, randomize_norms, snapshot
from whitenorm import conversion_of, convert_, load_converted
from whitenorm.layers import Whitening


class TestStatesThatDoNotFit:
    """A state that does not fit leaves the model unchanged."""

    @pytest.mark.parametrize("error", ["missing", "left over", "size", "no tensor"])
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    def test_the_model_is_unchanged(self, where, error):
        torch.manual_seed(1)
        saved = convert_(ResNet(), "bw-sigma", where)
        state = saved.state_dict()
        if error == "missing":
            del state["conv1.weight"]
        elif error == "left over":
            state["more"] = torch.zeros(1)
        else:
            state["blocks.1.bn2.weight"] = torch.zeros(3) if error == "size" else "x"
        model = ResNet()
        before = snapshot(model)
        with pytest.raises((ValueError, RuntimeError), match=r"missing|size mismatch|expected torch.Tensor"):
            load_converted(model, state, conversion_of(saved))
        assert_unchanged(model, before)

    def test_a_transformer_and_its_config_are_unchanged(self):
        transformers = pytest.importorskip("transformers")
        saved = convert_(transformers.BertForMaskedLM(make_bert_config()), "gw")
        model = transformers.BertForMaskedLM(make_bert_config())
        before = snapshot(model)
        state = {name: tensor for name, tensor in saved.state_dict().items() if "embeddings.LayerNorm" not in name}
        with pytest.raises(ValueError, match=r"missing: bert\.embeddings\.LayerNorm\.weight"):
            load_converted(model, state, saved.config.whitenorm)
        assert_unchanged(model, before)
        assert not hasattr(model.config, "whitenorm")

    def test_warnings_of_loading_come_once(self):
        state = randomize_norms(nn.Sequential(nn.BatchNorm2d(8))).state_dict()
        record = conversion_of(convert_(nn.Sequential(nn.BatchNorm2d(8)), "gw"))
        with pytest.warns(UserWarning, match="are left out") as caught:
            load_converted(nn.Sequential(nn.BatchNorm2d(8)), state, record)
        assert len(caught) == 1

    def test_lazy_layers_take_the_shape_of_the_state(self):
        saved = convert_(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "iternorm")
        model = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8))
        load_converted(model, saved.state_dict(), conversion_of(saved))
        assert torch.equal(model[0].weight, saved[0].weight)

    def test_a_solver_without_a_name_is_a_warning_in_a_conversion(self):
        transformers = pytest.importorskip("transformers")
        model = transformers.BertForMaskedLM(make_bert_config())
        with pytest.warns(UserWarning, match="config has no record of this conversion: expected solvers with a name"):
            convert_(model, "gw", solver=lambda cov: cov)
        assert model.config.whitenorm is None


class TestLoading:
    def test_keeps_the_epsilon_of_the_batch_norm(self):
        norm = randomize_norms(nn.Sequential(nn.BatchNorm2d(8, eps=0.1))).eval()
        record = conversion_of(convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "iternorm"))
        model = load_converted(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), norm.state_dict(), record).eval()
        x = torch.randn(2, 8, 3, 3)
        torch.testing.assert_close(model(x), norm(x))

    def test_keeps_that_epsilon_through_layers_without_population(self):
        norm = randomize_norms(nn.Sequential(nn.BatchNorm2d(8, eps=0.1))).eval()
        model = convert_(convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "gw"), "iternorm").eval()
        model.load_state_dict(norm.state_dict())
        x = torch.randn(2, 8, 3, 3)
        torch.testing.assert_close(model(x), norm(x))

    def test_keeps_requires_grad_hooks_mode_and_dtype(self):
        saved = convert_(nn.Sequential(nn.BatchNorm1d(8)), "sw")
        plain, calls = nn.Sequential(nn.BatchNorm1d(8)).requires_grad_(False).eval().double(), []
        plain[0].register_forward_hook(lambda module, inputs, output: calls.append(module))
        model = load_converted(plain, saved.state_dict(), conversion_of(saved))
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert not model[0].training
        assert model[0].running_cov.dtype == torch.float64
        model(torch.randn(4, 8, dtype=torch.float64))
        assert calls == [model[0]]
        assert type(convert_(model, "bn")[0]) is nn.BatchNorm1d

    @pytest.mark.parametrize("place", ["fused", "before"])
    def test_replaces_a_layer_in_its_container(self, place):
        def make_plain():
            return nn.Sequential(BatchNormAct2d(8)) if place == "fused" else ResNet()

        where = "all" if place == "fused" else "l1+df"
        model, other = (convert_(make_plain(), "iternorm", where, steps=steps) for steps in (2, 7))
        assert repr(load_converted(other, model.state_dict(), conversion_of(model))) == repr(model)

    def test_a_layer_before_the_classifier_has_its_name(self):
        saved = convert_(ResNet(), "iternorm", "l1+df")
        model = load_converted(ResNet(), saved.state_dict(), conversion_of(saved))
        assert (model.fc[0].name_in_model, model.fc[0].replaces) == ("fc.0", "BatchNorm1d")
        assert vars(model.fc[0]).keys() == vars(saved.fc[0]).keys()

    def test_a_model_without_whitening(self):
        model = ResNet()
        file = {"state_dict": model.state_dict(), "whitenorm": conversion_of(model)}
        assert torch.equal(load_converted(ResNet(), file).conv1.weight, model.conv1.weight)


def make_bert_config(**options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertConfig(**sizes, vocab_size=20, **options)


@pytest.mark.parametrize("shards", [False, True])
def test_a_transformers_model_from_its_folder(shards, tmp_path):
    """The model has tied weights, which are saved once."""
    transformers = pytest.importorskip("transformers")
    model = convert_(transformers.BertForMaskedLM(make_bert_config()), "gw", num_groups=2).eval()
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
    fresh = load_converted(transformers.BertForMaskedLM(make_bert_config()), tmp_path).eval()
    assert torch.equal(fresh(ids).logits, model(ids).logits)


def test_a_vision_model_with_statistics_from_its_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = convert_(randomize_norms(transformers.ResNetModel(config)), "iternorm").eval()
    model.save_pretrained(tmp_path)
    again = load_converted(transformers.ResNetModel(config), tmp_path).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(x).pooler_output, model(x).pooler_output)
    assert any(isinstance(module, Whitening) for module in again.modules())


def test_folded_layers_are_not_in_the_configuration():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = convert_(transformers.ResNetModel(config), "iternorm").eval()
    assert model.config.whitenorm
    whitenorm.fold_(model, torch.randn(2, 3, 32, 32))
    assert model.config.whitenorm == {}
