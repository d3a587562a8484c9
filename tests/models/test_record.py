"""Checkpoints around a conversion: those from before it, and a record with which its own come back."""

import copy
import inspect
import json
import random

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import BatchNormAct2d, ResNet, trained
from tests.models.test_convert import NAMES
from whitenorm import conversion_of, convert_, load_converted
from whitenorm.layers import Whitening
from whitenorm.models import record as records


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


def snapshot(model):
    """What must not change: the modules by name, and the values of all tensors."""
    return {name: id(module) for name, module in model.named_modules()}, copy.deepcopy(model.state_dict())


def assert_unchanged(model, before):
    modules, state = before
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def damage(rng, value):
    """Change something at a random place of a record: a key, a value, a type, a size."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        value = copy.copy(value)
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        action = rng.random()
        if action < 0.15:
            del value[key]
        elif action < 0.25 and isinstance(value, dict):
            value[rng.choice(["more", "process_group", "place", "", 3])] = value.pop(key)
        else:
            value[key] = damage(rng, value[key])
        return value
    others = [None, True, -1, 0, 3, 10**9, 10**30, 0.5, float("nan"), float("inf"), "x", "newton", "", [], [1], {}]
    return rng.choice([*others, {"name": "newton", "steps": 10**9}, ["bw", "bw"], [["bw"]], b"x"])


class TestDamage:
    def records(self):
        model = convert_(ResNet(), "sw", "l1+df")
        convert_(model, "iternorm", ["blocks.0"], steps=3)
        convert_(model, "bw-sigma", ["blocks.1"], solver=whitenorm.solvers.Newton(7))
        return conversion_of(model), model.state_dict()

    def test_random_damage_is_an_error_or_harmless(self):
        record, _ = self.records()
        rng = random.Random(0)
        errors = []
        for _ in range(600):
            model = ResNet()
            before = snapshot(model)
            try:
                load_converted(model, {}, damage(rng, json.loads(json.dumps(record))), strict=False)
            except ValueError as error:
                errors.append(str(error))
                assert_unchanged(model, before)
        assert all("expected" in error and "(got" in error for error in errors)
        assert 300 < len(errors) < 600

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"steps": 10**9}, r"damaged entry 'bn1': expected steps to be a whole number from 0 to 1000"),
            ({"process_group": "x"}, r"unknown: 'process_group'"),
            ({"num_features": 10**12}, r"expected a layer for the width 8 .*\(got 1000000000000\)"),
            ({"group_size": 3}, r"expected group_size to divide the 8 channels"),
            ({"eps": "small"}, r"expected eps from 0"),
            ({"affine": 1}, r"expected affine to be true or false \(got 1\)"),
            ({"momentum": 3}, r"expected momentum from 0 to 1"),
            ({"population": "sample"}, r"expected population to be"),
        ],
    )
    def test_arguments_are_checked(self, change, message):
        record = conversion_of(convert_(ResNet(), "iternorm"))
        record["bn1"]["arguments"].update(change)
        with pytest.raises(ValueError, match=message):
            load_converted(ResNet(), {}, record)

    @pytest.mark.parametrize(
        ("solver", "message"),
        [
            ("zcaa", "expected solver to be one of"),
            ({"name": "newton", "steps": 10**9}, "from 0 to 1000"),
            ({"name": "newton", "step": 3}, r"missing: steps; unknown: 'step'"),
            ({"steps": 3}, "a name, or a dict with one"),
            (5, "a name, or a dict with one"),
        ],
    )
    def test_solvers_are_checked(self, solver, message):
        record = conversion_of(convert_(ResNet(), "bw-sigma"))
        record["bn1"]["arguments"]["solver"] = solver
        with pytest.raises(ValueError, match=message):
            load_converted(ResNet(), {}, record)

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ([], "a dict by module names"),
            ({"bn1": []}, "expected entry to be a dict"),
            ({"bn1": {}}, "missing: layer, arguments"),
            ({"bn1": {"layer": "IterNrm", "arguments": {}}}, "did you mean IterNorm"),
            ({"bn1": {"layer": "IterNorm", "arguments": {}}}, "missing: num_features"),
            ({"blocks.0.bm1": {}}, "did you mean blocks.0.bn1"),
            ({"bn1": {"layer": "IterNorm", "arguments": {}, "place": "after"}}, "expected place to be one of"),
        ],
    )
    def test_entries_are_checked(self, record, message):
        with pytest.raises(ValueError, match=message):
            load_converted(ResNet(), {}, record)

    @pytest.mark.parametrize("place", ["before", "activated"])
    def test_places_are_checked(self, place):
        record = conversion_of(convert_(ResNet(), "iternorm"))
        record["bn1"]["place"] = place
        with pytest.raises(ValueError, match="exactly if the record says"):
            load_converted(ResNet(), {}, record)

    def test_every_argument_of_every_layer_has_a_check(self):
        for kind in records._LAYERS.values():
            arguments = records._list_arguments(kind)
            assert set(arguments) <= set(records._PARSERS)
            assert "steps" not in inspect.signature(kind).parameters or "solver" not in arguments

    @pytest.mark.parametrize("text", ["[", "[1]", '"x"'])
    def test_files_with_other_json(self, text, tmp_path):
        (tmp_path / "config.json").write_text(text)
        torch.save({}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"expected .*JSON.* in .*config\.json"):
            load_converted(ResNet(), tmp_path)

    def test_a_file_of_something_else(self, tmp_path):
        torch.save([1], tmp_path / "model.pt")
        with pytest.raises(ValueError, match=r"or a path \(got list\)"):
            load_converted(ResNet(), tmp_path / "model.pt")


class TestAllOrNothing:
    """A state that does not fit leaves the model as it was."""

    @pytest.mark.parametrize("trouble", ["missing", "left over", "size", "no tensor"])
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    def test_of_a_state_that_does_not_fit(self, where, trouble):
        torch.manual_seed(1)
        saved = convert_(ResNet(), "bw-sigma", where)
        state = saved.state_dict()
        if trouble == "missing":
            del state["conv1.weight"]
        elif trouble == "left over":
            state["more"] = torch.zeros(1)
        else:
            state["blocks.1.bn2.weight"] = torch.zeros(3) if trouble == "size" else "x"
        model = ResNet()
        before = snapshot(model)
        with pytest.raises((ValueError, RuntimeError), match=r"missing|size mismatch|expected torch.Tensor"):
            load_converted(model, state, conversion_of(saved))
        assert_unchanged(model, before)

    def test_of_a_transformer_and_its_config(self):
        transformers = pytest.importorskip("transformers")
        saved = convert_(transformers.BertForMaskedLM(bert()), "gw")
        model = transformers.BertForMaskedLM(bert())
        before = snapshot(model)
        state = {name: tensor for name, tensor in saved.state_dict().items() if "embeddings.LayerNorm" not in name}
        with pytest.raises(ValueError, match=r"missing: bert\.embeddings\.LayerNorm\.weight"):
            load_converted(model, state, saved.config.whitenorm)
        assert_unchanged(model, before)
        assert not hasattr(model.config, "whitenorm")

    def test_warnings_of_loading_come_once(self):
        state = trained(nn.Sequential(nn.BatchNorm2d(8))).state_dict()
        record = conversion_of(convert_(nn.Sequential(nn.BatchNorm2d(8)), "gw"))
        with pytest.warns(UserWarning, match="are left out") as caught:
            load_converted(nn.Sequential(nn.BatchNorm2d(8)), state, record)
        assert len(caught) == 1

    def test_lazy_layers_are_made(self):
        """Theirs is the shape that the state has."""
        saved = convert_(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "iternorm")
        model = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8))
        load_converted(model, saved.state_dict(), conversion_of(saved))
        assert torch.equal(model[0].weight, saved[0].weight)

    def test_a_solver_without_a_name_is_no_reason_to_fail_after_the_conversion(self):
        transformers = pytest.importorskip("transformers")
        model = transformers.BertForMaskedLM(bert())
        with pytest.warns(UserWarning, match="config has no record of this conversion: expected solvers with a name"):
            convert_(model, "gw", solver=lambda cov: cov)
        assert model.config.whitenorm is None


class TestWhatLoadingKeeps:
    def test_the_epsilon_that_a_batch_norm_was_trained_with(self):
        norm = trained(nn.Sequential(nn.BatchNorm2d(8, eps=0.1))).eval()
        record = conversion_of(convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "iternorm"))
        model = load_converted(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), norm.state_dict(), record).eval()
        x = torch.randn(2, 8, 3, 3)
        torch.testing.assert_close(model(x), norm(x))

    def test_that_epsilon_through_layers_without_a_population(self):
        norm = trained(nn.Sequential(nn.BatchNorm2d(8, eps=0.1))).eval()
        model = convert_(convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "gw"), "iternorm").eval()
        model.load_state_dict(norm.state_dict())
        x = torch.randn(2, 8, 3, 3)
        torch.testing.assert_close(model(x), norm(x))

    def test_what_is_frozen_hooks_mode_and_the_way_back(self):
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
    def test_a_layer_in_its_place_is_replaced_there(self, place):
        def plain():
            return nn.Sequential(BatchNormAct2d(8)) if place == "fused" else ResNet()

        where = "all" if place == "fused" else "l1+df"
        model, other = (convert_(plain(), "iternorm", where, steps=steps) for steps in (2, 7))
        assert repr(load_converted(other, model.state_dict(), conversion_of(model))) == repr(model)

    def test_a_layer_before_the_classifier_knows_where_it_is(self):
        saved = convert_(ResNet(), "iternorm", "l1+df")
        model = load_converted(ResNet(), saved.state_dict(), conversion_of(saved))
        assert (model.fc[0].name_in_model, model.fc[0].replaces) == ("fc.0", "BatchNorm1d")
        assert vars(model.fc[0]).keys() == vars(saved.fc[0]).keys()

    def test_a_model_without_whitening(self):
        model = ResNet()
        file = {"state_dict": model.state_dict(), "whitenorm": conversion_of(model)}
        assert torch.equal(load_converted(ResNet(), file).conv1.weight, model.conv1.weight)


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
    whitenorm.fold_(model, torch.randn(2, 3, 32, 32))
    assert model.config.whitenorm == {}
