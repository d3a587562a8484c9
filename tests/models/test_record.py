"""Records of conversions, and state dicts from before a conversion."""

import copy
import inspect
import json
import random

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import BatchNormAct2d, ResNet, assert_unchanged, randomize_norms, snapshot
from whitenorm import conversion_of, convert_, load_converted
from whitenorm.models import WHITENING_NAMES
from whitenorm.models import record as records


def make_trained_model():
    """Return a trained model, an input, and the model's output."""
    model = randomize_norms(ResNet()).eval().double()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    return model, x, model(x)


class TestBatchNormState:
    """A BatchNorm state dict, loaded into a converted model."""

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("where", ["all", "l1", "l1+df"])
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma"])
    def test_loads_into_whitening_layers(self, name, where, strict):
        model, x, expected = make_trained_model()
        other = convert_(ResNet().double(), name, where).eval()
        missing, unexpected = other.load_state_dict(model.state_dict(), strict=strict)
        assert not missing
        assert not unexpected
        assert (other(x) - expected).abs().max() < 1e-10

    def test_loads_with_the_epsilon_of_the_batch_norm(self):
        norm = randomize_norms(nn.BatchNorm2d(8, eps=0.1)).eval()
        layer = convert_(nn.Sequential(nn.BatchNorm2d(8, eps=0.1)), "iternorm").eval()
        layer.load_state_dict(nn.Sequential(norm).state_dict())
        x = torch.randn(2, 8, 3, 3)
        assert torch.allclose(layer(x), norm(x), atol=1e-5)

    @pytest.mark.parametrize("name", ["sw", "sw5"])
    def test_loads_into_the_batch_statistics_of_switchable_whitening(self, name):
        state = randomize_norms(nn.BatchNorm2d(8)).state_dict()
        layer = convert_(nn.BatchNorm2d(8), name)
        missing, unexpected = layer.load_state_dict(state, strict=False)
        assert set(missing) == {"mean_logits", "cov_logits"}
        assert not unexpected
        assert torch.allclose(layer.running_cov.diagonal(dim1=1, dim2=2).flatten(), state["running_var"], atol=1e-5)

    @pytest.mark.parametrize("name", ["gw", "iw"])
    def test_population_statistics_are_dropped_with_a_warning(self, name):
        state = randomize_norms(ResNet()).state_dict()
        model = convert_(ResNet(), name)
        with pytest.warns(UserWarning, match="population statistics of BatchNorm in this state dict are left out"):
            model.load_state_dict(state)
        assert torch.equal(model.bn1.weight, state["bn1.weight"])

    def test_loads_into_fused_activations(self):
        norm = randomize_norms(BatchNormAct2d(8)).eval()
        model = convert_(nn.Sequential(BatchNormAct2d(8)), "iternorm").eval()
        model.load_state_dict(nn.Sequential(norm).state_dict())
        x = torch.randn(2, 8, 3, 3)
        assert torch.allclose(model(x), norm(x), atol=1e-5)

    def test_another_width_is_an_error(self):
        with pytest.raises(RuntimeError, match=r"size mismatch|Missing"):
            convert_(nn.BatchNorm2d(8), "iternorm").load_state_dict(nn.BatchNorm2d(4).state_dict())


class TestRecord:
    @pytest.mark.filterwarnings("ignore:this model is trained")
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    @pytest.mark.parametrize("name", [name for name in WHITENING_NAMES if name != "iw"])
    def test_a_plain_model_becomes_the_saved_one(self, name, where, tmp_path):
        model = convert_(randomize_norms(ResNet()), name, where, eps=1e-2)
        model(torch.randn(8, 3, 16, 16))
        file = tmp_path / "model.pt"
        record = json.loads(json.dumps(conversion_of(model)))
        torch.save({"state_dict": model.state_dict(), "whitenorm": record}, file)
        again = load_converted(ResNet(), file)
        assert repr(again) == repr(model)
        x = torch.randn(4, 3, 16, 16)
        assert torch.equal(again.eval()(x), model.eval()(x))
        assert conversion_of(again) == record

    def test_has_options_and_solvers(self):
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

    def test_fused_activations(self):
        model = convert_(nn.Sequential(BatchNormAct2d(8)), "iternorm")
        again = load_converted(nn.Sequential(BatchNormAct2d(8)), model.state_dict(), conversion_of(model))
        assert repr(again) == repr(model)

    def test_layers_that_the_model_has_stay(self):
        model = convert_(ResNet(), "iternorm")
        layer = model.bn1
        assert load_converted(model, model.state_dict(), conversion_of(model)).bn1 is layer

    def test_a_model_without_whitening_has_an_empty_record(self):
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
        model = convert_(randomize_norms(ResNet()), "bw-sigma")
        file = tmp_path / "model.safetensors"
        save(model.state_dict(), file, metadata={"whitenorm": json.dumps(conversion_of(model))})
        x = torch.randn(4, 3, 8, 8)
        assert torch.equal(load_converted(ResNet(), file).eval()(x), model.eval()(x))


def damage_record(rng, value):
    """Return a record with a change at a random place: a key, a value, a type or a size."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        value = copy.copy(value)
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        action = rng.random()
        if action < 0.15:
            del value[key]
        elif action < 0.25 and isinstance(value, dict):
            value[rng.choice(["more", "process_group", "place", "", 3])] = value.pop(key)
        else:
            value[key] = damage_record(rng, value[key])
        return value
    others = [None, True, -1, 0, 3, 10**9, 10**30, 0.5, float("nan"), float("inf"), "x", "newton", "", [], [1], {}]
    return rng.choice([*others, {"name": "newton", "steps": 10**9}, ["bw", "bw"], [["bw"]], b"x"])


class TestDamagedRecords:
    def make_record(self):
        model = convert_(ResNet(), "sw", "l1+df")
        convert_(model, "iternorm", ["blocks.0"], steps=3)
        convert_(model, "bw-sigma", ["blocks.1"], solver=whitenorm.solvers.Newton(7))
        return conversion_of(model), model.state_dict()

    def test_random_damage_is_an_error_or_harmless(self):
        record, _ = self.make_record()
        rng = random.Random(0)
        errors = []
        for _ in range(600):
            model = ResNet()
            before = snapshot(model)
            try:
                load_converted(model, {}, damage_record(rng, json.loads(json.dumps(record))), strict=False)
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
    def test_files_with_invalid_json(self, text, tmp_path):
        (tmp_path / "config.json").write_text(text)
        torch.save({}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"expected .*JSON.* in .*config\.json"):
            load_converted(ResNet(), tmp_path)

    def test_a_file_with_something_else(self, tmp_path):
        torch.save([1], tmp_path / "model.pt")
        with pytest.raises(ValueError, match=r"or a path \(got list\)"):
            load_converted(ResNet(), tmp_path / "model.pt")
