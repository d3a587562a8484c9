"""Loading of converted transformers models from their folders."""

import json
import logging
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import randomize_norms

transformers = pytest.importorskip("transformers")
from_pretrained = pytest.importorskip("whitenorm.integrations.transformers").from_pretrained

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}


def make_bert(kind="BertForMaskedLM"):
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES, vocab_size=20, num_labels=3))


def make_llama():
    config = transformers.LlamaConfig(**SIZES, vocab_size=20, num_key_value_heads=2, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def make_vit():
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, num_labels=3)
    return transformers.ViTForImageClassification(config)


def make_resnet():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**RESNET))


IDS = torch.arange(8)[None]
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
MODELS = {
    "bert": (make_bert, "gw", "AutoModelForMaskedLM", IDS),
    "llama": (make_llama, "gw", "AutoModelForCausalLM", IDS),
    "vit": (make_vit, "gw", "AutoModelForImageClassification", IMAGES[..., :16, :16]),
    "resnet": (make_resnet, "iternorm", "AutoModelForImageClassification", IMAGES),
    "resnet-sigma": (make_resnet, "bw-sigma", "AutoModelForImageClassification", IMAGES),
}


@pytest.fixture(params=MODELS)
def case(request, tmp_path):
    torch.manual_seed(0)
    make, layer, auto, x = MODELS[request.param]
    model = whitenorm.convert_(randomize_norms(make()), layer).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1, 0.1)
    model.save_pretrained(tmp_path)
    return model, auto, x, tmp_path


@pytest.fixture(autouse=True)
def messages():
    """Collect warnings of transformers' log, such as missing weights; make Python's warnings errors."""
    texts = []

    class Collector(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    handler = Collector(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield texts
    logger.removeHandler(handler)


def find_layers(model):
    return [module for module in model.modules() if isinstance(module, whitenorm.Whitening)]


def assert_same(again, model, x):
    assert repr(again) == repr(model)
    assert type(again) is type(model)
    assert len(find_layers(again)) == len(find_layers(model)) > 0
    state = again.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    outputs = [net(x, output_hidden_states=True) for net in (again, model)]
    assert torch.equal(outputs[0].logits, outputs[1].logits)
    assert len(outputs[0].hidden_states) == len(outputs[1].hidden_states) > 1
    assert again.config.whitenorm == model.config.whitenorm


@pytest.mark.parametrize("auto", [False, True])
def test_the_loaded_model_is_the_same(case, auto, messages):
    model, name, x, folder = case
    again = from_pretrained(getattr(transformers, name) if auto else type(model), folder)
    assert not again.training
    assert_same(again, model, x)
    assert messages == []


def test_transformers_own_function_loses_the_layers(case):
    model, _, _, folder = case
    assert find_layers(type(model).from_pretrained(folder)) == []


def test_several_files(case):
    model, auto, x, folder = case
    for file in folder.glob("*.safetensors"):
        file.unlink()
    model.save_pretrained(folder, max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert_same(from_pretrained(getattr(transformers, auto), folder), model, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", torch.float64])
def test_another_dtype(case, dtype):
    model, auto, _, folder = case
    again = from_pretrained(getattr(transformers, auto), folder, dtype=dtype)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    statistics = [(name, tensor) for name, tensor in again.named_buffers() if "running_" in name]
    assert bool(statistics) == (auto == "AutoModelForImageClassification" and "resnet" in type(model).__name__.lower())
    for name, tensor in statistics:
        assert tensor.dtype == wide
        assert torch.equal(tensor, model.get_buffer(name).to(wide))


def test_tied_weights_stay_tied(tmp_path):
    model = whitenorm.convert_(make_llama(), "gw")
    model.save_pretrained(tmp_path)
    again = from_pretrained(transformers.LlamaForCausalLM, tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_saving_and_loading_again(case, tmp_path):
    model, auto, x, folder = case
    again = from_pretrained(getattr(transformers, auto), folder)
    again.save_pretrained(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__]
    assert_same(from_pretrained(getattr(transformers, auto), tmp_path / "again"), model, x)


def test_a_base_model_from_a_model_with_a_head(tmp_path):
    model = whitenorm.convert_(make_bert(), "gw", num_groups=4).eval()
    model.save_pretrained(tmp_path)
    base = from_pretrained(transformers.AutoModel, tmp_path, add_pooling_layer=False)
    assert type(base) is transformers.BertModel
    assert len(find_layers(base)) == 5
    assert torch.equal(base(IDS).last_hidden_state, model.bert(IDS).last_hidden_state)
    assert set(base.config.whitenorm) == {
        name.removeprefix("bert.") for name in model.config.whitenorm if "cls" not in name
    }


def test_a_model_with_a_head_from_a_base_model(tmp_path, messages):
    base = whitenorm.convert_(make_bert("BertModel"), "gw", num_groups=4).eval()
    base.save_pretrained(tmp_path)
    model = from_pretrained(transformers.AutoModelForSequenceClassification, tmp_path)
    assert torch.equal(model.bert(IDS).last_hidden_state, base(IDS).last_hidden_state)
    # transformers warns of the new head.
    assert "classifier.weight" in "".join(messages)
    assert "LayerNorm" not in "".join(messages)


def test_loading_info_and_a_given_configuration(case):
    model, _, x, folder = case
    config = type(model.config).from_pretrained(folder)
    again, info = from_pretrained(type(model), folder, config=config, output_loading_info=True)
    assert_same(again, model, x)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_a_loaded_model_trains(case):
    _, auto, x, folder = case
    model = from_pretrained(getattr(transformers, auto), folder).train()
    model(x).logits.square().mean().backward()
    assert all(layer.weight.grad is not None for layer in find_layers(model))


def test_a_model_that_was_not_converted_is_an_error(tmp_path):
    make_bert().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"expected a record of the conversion.*\(got none\).*MaskedLM.from_pre"):
        from_pretrained(transformers.BertForMaskedLM, tmp_path)


def test_a_folded_model_is_an_error(tmp_path):
    model = make_resnet().eval()
    model.config.whitenorm = {}
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got an empty one"):
        from_pretrained(transformers.AutoModel, tmp_path)
