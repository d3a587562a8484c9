"""Warnings and errors of conversions: changed outputs of trained models, norms that stay, and unknown names."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.conversion_cases import OwnForward, make_parametrized, make_patched
from tests.helpers.models import BatchNormAct2d, ResNet, randomize_norms
from whitenorm import convert_, recipes

OUTPUT_CHANGES = "this model is trained, and its output in eval mode changes"


def collect_warnings(function, *args, **options):
    """Call a function, and return its result and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **options)
    return result, [str(warning.message) for warning in caught]


class TestOutputOfATrainedModel:
    @pytest.mark.parametrize("name", ["gw", "iw", "sw", "sw5", "gn", "ln"])
    def test_layers_with_other_statistics(self, name):
        (text,) = collect_warnings(convert_, randomize_norms(ResNet()), name)[1]
        assert text.startswith(OUTPUT_CHANGES)
        assert "bn1, blocks.0.bn1" in text
        assert "another function than BatchNorm2d" in text
        assert "fine-tune" in text
        assert ("recalibrate_" in text) == (name in ("sw", "sw5"))

    @pytest.mark.parametrize(
        "norm",
        [
            nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True),
            nn.BatchNorm2d(8, track_running_stats=False),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "sw"])
    def test_norms_without_population(self, name, norm):
        norm = copy.deepcopy(norm)
        nn.init.normal_(norm.weight)
        (text,) = collect_warnings(convert_, nn.Sequential(norm), name)[1]
        assert text.startswith(OUTPUT_CHANGES)
        assert ("recalibrate_(model, batches)" in text) == (not isinstance(norm, nn.BatchNorm2d))

    def test_layer_norm(self):
        norm = nn.LayerNorm(16)
        nn.init.normal_(norm.bias)
        assert OUTPUT_CHANGES in collect_warnings(convert_, nn.Sequential(norm), "gw")[1][0]

    @pytest.mark.parametrize("options", [{"solver": "newton"}, {"solver": "pca"}])
    def test_solvers_that_do_not_invert_the_population(self, options):
        (text,) = collect_warnings(convert_, randomize_norms(ResNet()), "bw-sigma", **options)[1]
        assert "BatchWhitening computes another function than BatchNorm2d: call recalibrate_" in text

    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "bn"])
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    def test_no_warning_if_the_output_stays(self, name, where):
        model = randomize_norms(ResNet())
        with warnings.catch_warnings():
            # The model already has "bn".
            warnings.filterwarnings("ignore", "nothing is converted")
            convert_(model, name, where)

    def test_features_before_the_classifier(self):
        (text,) = collect_warnings(convert_, randomize_norms(ResNet()), "gw", "l1+df")[1]
        assert "fc: GroupWhitening computes another function than no norm" in text

    def test_larger_groups_keep_the_output_and_lost_correlations_change_it(self):
        model = nn.Sequential(whitenorm.DecorrelatedBatchNorm(8, 4))
        for _ in range(10):
            model(torch.randn(64, 8, 2, 2) @ torch.tensor([[1.0, 0.9], [0.0, 1.0]]))
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            model[0].running_whitening.copy_(torch.diag_embed(torch.rand(2, 4) + 0.5))
            mixed[0].running_whitening.copy_(torch.rand(2, 4, 4) + 2 * torch.eye(4))
        assert collect_warnings(convert_, model, "dbn", group_size=8, eps=1e-9)[1] == []
        assert OUTPUT_CHANGES in collect_warnings(convert_, mixed, "bn")[1][0]

    @pytest.mark.parametrize("name", ["iternorm", "sw", "sw5", "gw", "iw", "gn", "ln"])
    def test_a_fresh_model_is_not_trained(self, name):
        model = ResNet()
        # Libraries initialize residual branches with zeros; a forward pass in eval mode changes nothing.
        nn.init.zeros_(model.blocks[0].bn2.weight)
        model.eval()(torch.randn(2, 3, 8, 8))
        assert collect_warnings(convert_, model, name)[1] == []

    @pytest.mark.parametrize("sign", ["a batch", "a step", "a checkpoint"])
    def test_each_sign_of_training(self, sign):
        model = ResNet()
        if sign == "a batch":
            model(torch.randn(2, 3, 8, 8))
        elif sign == "a step":
            nn.init.normal_(model.bn1.bias)
        else:
            model.bn1.running_var.uniform_(1, 2)
        assert OUTPUT_CHANGES in collect_warnings(convert_, model, "gw")[1][0]

    def test_a_plan_has_the_warning(self):
        plan = recipes.plan(randomize_norms(ResNet()), "gw", "l1")
        assert "another function" in plan[0].effect
        assert "[1] GroupWhitening computes another function" in str(plan)

    def test_no_warning_on_the_meta_device(self):
        with torch.device("meta"):
            assert collect_warnings(convert_, ResNet(), "gw")[1] == []


class Gated(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x).sigmoid() * x


class Styled(nn.InstanceNorm2d):
    def forward(self, x, style=None):
        return super().forward(x)


class WithATensor(nn.BatchNorm2d):
    def __init__(self, width):
        super().__init__(width)
        self.gate = nn.Parameter(torch.ones(width))


class OwnWhitening(whitenorm.IterNorm):
    def forward(self, x):
        return super().forward(x).relu()


OBSTACLES = {
    "batch": (lambda: OwnForward(8), "OwnForward has a forward of its own"),
    "group": (lambda: Gated(2, 8), "Gated has a forward of its own"),
    "instance": (lambda: Styled(8), "Styled has a forward of its own"),
    "tensor": (lambda: WithATensor(8), "WithATensor has tensors of its own (gate)"),
    "whitening": (lambda: OwnWhitening(8), "OwnWhitening has a forward of its own"),
    "parametrized": (make_parametrized, "it is parametrized"),
    "patched": (make_patched, "its forward was replaced on the instance"),
}


@pytest.mark.parametrize(("make", "reason"), OBSTACLES.values(), ids=OBSTACLES)
class TestNormsThatWouldLoseSomething:
    def test_they_stay_with_a_reason(self, make, reason):
        model = nn.ModuleDict({"odd": make(), "plain": nn.BatchNorm2d(8)})
        odd = model["odd"]
        (text,) = collect_warnings(convert_, model, "dbn")[1]
        assert model["odd"] is odd
        assert isinstance(model["plain"], whitenorm.DecorrelatedBatchNorm)
        assert re.search(rf"odd: .*{re.escape(reason)}.*; it stays\n.*where=\[names\]", text)

    def test_a_plan_says_which_stay(self, make, reason):
        plan = recipes.plan(nn.ModuleDict({"odd": make(), "plain": nn.BatchNorm2d(8)}), "dbn")
        assert [change.name for change in plan] == ["plain"]
        assert reason in plan.skipped["odd"]
        assert "odd stays: " in str(plan)

    @pytest.mark.parametrize("where", ["all", ["block"], ["*.odd"], lambda module, name: name == "block.odd"])
    def test_a_model_of_nothing_else_is_an_error(self, make, reason, where):
        model = nn.ModuleDict({"block": nn.ModuleDict({"odd": make()})})
        with pytest.raises(ValueError, match=re.escape(reason)):
            convert_(model, "dbn", where)

    def test_exact_names_replace_them(self, make, reason):
        model = nn.ModuleDict({"odd": make()})
        texts = collect_warnings(convert_, model, "dbn", ["odd"])[1]
        assert type(model["odd"]) is whitenorm.DecorrelatedBatchNorm
        assert reason in texts[0]
        assert model["odd"](torch.randn(4, 8, 3, 3)).isfinite().all()


def test_a_forward_that_cannot_be_tried():
    """The forward of another library's RMSNorm is run on an example, which is impossible on the meta device."""

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, device="meta"))

    model = nn.Sequential(RMSNorm(), nn.LayerNorm(8))
    (text,) = collect_warnings(convert_, model, "gw")[1]
    assert "0: tests.models.test_convert_warnings." in text
    assert "has a forward that cannot be tried on the meta device; it stays" in text


def test_the_computed_value_of_a_parametrized_weight_carries_over():
    model = nn.ModuleDict({"norm": make_parametrized()})
    with pytest.warns(UserWarning, match="parametrized"):
        convert_(model, "iternorm", ["norm"])
    assert torch.equal(model["norm"].weight, torch.full((8,), -1.0))
    assert model["norm"].weight.requires_grad


@pytest.mark.parametrize("norm", [BatchNormAct2d(8), nn.SyncBatchNorm(8), nn.BatchNorm3d(8)], ids=str)
def test_known_subclasses_are_converted(norm):
    assert collect_warnings(convert_, nn.Sequential(norm), "iternorm")[1] == []


def test_a_subclass_of_batch_norm_counts_as_batch_norm():
    model = nn.Sequential(OwnForward(8), whitenorm.IterNorm(8))
    assert collect_warnings(convert_, model, "bn")[1] == []
    assert [type(module) for module in model] == [OwnForward, whitenorm.models.modules.BatchNorm]


def test_timms_norms():
    timm = pytest.importorskip("timm.layers")
    model = nn.ModuleList(
        [timm.BatchNormAct2d(8), timm.GroupNormAct(8, 2), timm.GroupNorm1(8), timm.LayerNorm(8), timm.LayerNorm2d(8)]
    )
    assert collect_warnings(convert_, copy.deepcopy(model), "gw", num_groups=2)[1] == []
    split = nn.ModuleList([timm.SplitBatchNorm2d(8), nn.BatchNorm2d(8)])
    assert (
        "0: timm.layers.split_batchnorm.SplitBatchNorm2d has tensors of its own (aux_bn."
        in (collect_warnings(convert_, split, "iternorm")[1][0])
    )


class TestErrors:
    @pytest.mark.parametrize(
        ("layer", "where", "options", "message"),
        [
            ("gw", "blocks", {}, "module names come in a list: where=['blocks']"),
            ("gw", "bn1", {}, "module names come in a list: where=['bn1']"),
            ("gw", "s1-b22", {}, "did you mean s1-b2"),
            ("gw", "bn17x", {}, "(got 'bn17x')"),
            ("gw", [], {}, "expected at least one module name or pattern in where (got [])"),
            ("gw", ["blocks.0.bn7"], {}, "did you mean blocks.0.bn"),
            ("gw", ["blcks"], {}, "did you mean blocks or"),
            ("iternorm", "all", {"groupsize": 8}, "(got groupsize); did you mean group_size?"),
            ("iternorm", "all", {"T": 3}, "(got T); did you mean steps?"),
            ("gn", "all", {"epsilon": 3}, "(got epsilon); did you mean eps?"),
            ("dbn", "all", {"T": 3}, "population, process_group, bias (got T)"),
            ("iternom", "all", {}, "(got 'iternom'); did you mean iternorm?"),
            ("bn", "all", {"eps": None}, "expected eps from 0 to 1e+30 (got None); leave it out"),
            ("iternorm", "all", {"eps": None}, "expected eps from 0 to 1e+30 (got None); leave it out"),
        ],
    )
    def test_unknown_names_get_a_suggestion(self, layer, where, options, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            convert_(ResNet(), layer, where, **options)

    @pytest.mark.parametrize("where", ["all", "l1", "s1-b2", ["bn1"], "l1+df"])
    def test_a_model_without_norms(self, where):
        with pytest.raises(ValueError, match=r"expected a model with norms \(got Sequential without any"):
            convert_(nn.Sequential(nn.Linear(2, 2)), "gw", where)
