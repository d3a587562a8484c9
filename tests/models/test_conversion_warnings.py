"""What a conversion says: of a trained model's output, of norms that it leaves, and of words that it does not know."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import whitenorm
from tests.helpers.models import BatchNormAct2d, ResNet, trained
from whitenorm import convert_, recipes

CHANGES = "this model is trained, and its output in eval mode changes"


def run_quietly(function, *args, **options):
    """Call a function, and return its result and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **options)
    return result, [str(warning.message) for warning in caught]


class TestOutputOfATrainedModel:
    @pytest.mark.parametrize("name", ["gw", "iw", "sw", "sw5", "gn", "ln"])
    def test_other_statistics_than_batch_norms(self, name):
        (text,) = run_quietly(convert_, trained(ResNet()), name)[1]
        assert text.startswith(CHANGES)
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
    def test_no_population_to_take(self, name, norm):
        norm = copy.deepcopy(norm)
        nn.init.normal_(norm.weight)
        (text,) = run_quietly(convert_, nn.Sequential(norm), name)[1]
        assert text.startswith(CHANGES)
        assert ("recalibrate_(model, batches)" in text) == (not isinstance(norm, nn.BatchNorm2d))

    def test_layer_norm(self):
        norm = nn.LayerNorm(16)
        nn.init.normal_(norm.bias)
        assert CHANGES in run_quietly(convert_, nn.Sequential(norm), "gw")[1][0]

    @pytest.mark.parametrize("options", [{"solver": "newton"}, {"solver": "pca"}])
    def test_solvers_that_do_not_give_the_population_back(self, options):
        (text,) = run_quietly(convert_, trained(ResNet()), "bw-sigma", **options)[1]
        assert "BatchWhitening computes another function than BatchNorm2d: call recalibrate_" in text

    @pytest.mark.parametrize("name", ["iternorm", "dbn", "bw-sigma", "bn"])
    @pytest.mark.parametrize("where", ["all", "l1+df"])
    def test_what_keeps_the_output_is_quiet(self, name, where):
        model = trained(ResNet())
        with warnings.catch_warnings():
            # "bn" is what the model has.
            warnings.filterwarnings("ignore", "nothing is converted")
            convert_(model, name, where)

    def test_features_before_the_classifier(self):
        (text,) = run_quietly(convert_, trained(ResNet()), "gw", "l1+df")[1]
        assert "fc: GroupWhitening computes another function than no norm" in text

    def test_larger_groups_keep_it_and_correlations_that_are_lost_do_not(self):
        model = nn.Sequential(whitenorm.DecorrelatedBatchNorm(8, 4))
        for _ in range(10):
            model(torch.randn(64, 8, 2, 2) @ torch.tensor([[1.0, 0.9], [0.0, 1.0]]))
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            model[0].running_whitening.copy_(torch.diag_embed(torch.rand(2, 4) + 0.5))
            mixed[0].running_whitening.copy_(torch.rand(2, 4, 4) + 2 * torch.eye(4))
        assert run_quietly(convert_, model, "dbn", group_size=8, eps=1e-9)[1] == []
        assert CHANGES in run_quietly(convert_, mixed, "bn")[1][0]

    @pytest.mark.parametrize("name", ["iternorm", "sw", "sw5", "gw", "iw", "gn", "ln"])
    def test_a_fresh_model_is_not_trained(self, name):
        model = ResNet()
        # As libraries begin residual branches, and as a forward pass in eval mode leaves it.
        nn.init.zeros_(model.blocks[0].bn2.weight)
        model.eval()(torch.randn(2, 3, 8, 8))
        assert run_quietly(convert_, model, name)[1] == []

    @pytest.mark.parametrize("touch", ["a batch", "a step", "a checkpoint"])
    def test_each_sign_of_training(self, touch):
        model = ResNet()
        if touch == "a batch":
            model(torch.randn(2, 3, 8, 8))
        elif touch == "a step":
            nn.init.normal_(model.bn1.bias)
        else:
            model.bn1.running_var.uniform_(1, 2)
        assert CHANGES in run_quietly(convert_, model, "gw")[1][0]

    def test_a_plan_says_it_too(self):
        plan = recipes.plan(trained(ResNet()), "gw", "l1")
        assert "another function" in plan[0].effect
        assert "[1] GroupWhitening computes another function" in str(plan)

    def test_nothing_is_known_on_the_meta_device(self):
        with torch.device("meta"):
            assert run_quietly(convert_, ResNet(), "gw")[1] == []


class Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


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


class Doubling(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized():
    norm = nn.BatchNorm2d(8)
    parametrize.register_parametrization(norm, "weight", Doubling())
    return norm


def patched():
    norm = nn.BatchNorm2d(8)
    norm.forward = lambda x: x
    return norm


OBSTACLES = {
    "batch": (lambda: Doubled(8), "Doubled has a forward of its own"),
    "group": (lambda: Gated(2, 8), "Gated has a forward of its own"),
    "instance": (lambda: Styled(8), "Styled has a forward of its own"),
    "tensor": (lambda: WithATensor(8), "WithATensor has tensors of its own (gate)"),
    "whitening": (lambda: OwnWhitening(8), "OwnWhitening has a forward of its own"),
    "parametrized": (parametrized, "it is parametrized"),
    "patched": (patched, "its forward was replaced on the instance"),
}


@pytest.mark.parametrize(("make", "reason"), OBSTACLES.values(), ids=OBSTACLES)
class TestNormsThatWouldLoseSomething:
    def test_they_stay_with_a_reason(self, make, reason):
        model = nn.ModuleDict({"odd": make(), "plain": nn.BatchNorm2d(8)})
        odd = model["odd"]
        (text,) = run_quietly(convert_, model, "dbn")[1]
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

    def test_their_names_ask_for_it(self, make, reason):
        model = nn.ModuleDict({"odd": make()})
        texts = run_quietly(convert_, model, "dbn", ["odd"])[1]
        assert type(model["odd"]) is whitenorm.DecorrelatedBatchNorm
        assert reason in texts[0]
        assert model["odd"](torch.randn(4, 8, 3, 3)).isfinite().all()


def test_a_forward_that_cannot_be_tried():
    """What an RMSNorm of another library computes is tried with numbers, of which there are none."""

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, device="meta"))

    model = nn.Sequential(RMSNorm(), nn.LayerNorm(8))
    (text,) = run_quietly(convert_, model, "gw")[1]
    assert "0: tests.models.test_conversion_warnings." in text
    assert "has a forward that cannot be tried on the meta device; it stays" in text


def test_a_parametrized_weight_is_taken_as_it_is_computed():
    model = nn.ModuleDict({"norm": parametrized()})
    with pytest.warns(UserWarning, match="parametrized"):
        convert_(model, "iternorm", ["norm"])
    assert torch.equal(model["norm"].weight, torch.full((8,), 2.0))
    assert model["norm"].weight.requires_grad


@pytest.mark.parametrize("norm", [BatchNormAct2d(8), nn.SyncBatchNorm(8), nn.BatchNorm3d(8)], ids=str)
def test_subclasses_that_are_understood(norm):
    assert run_quietly(convert_, nn.Sequential(norm), "iternorm")[1] == []


def test_plain_norms_are_not_asked_to_be_others():
    """A subclass of BatchNorm is one already."""
    model = nn.Sequential(Doubled(8), whitenorm.IterNorm(8))
    assert run_quietly(convert_, model, "bn")[1] == []
    assert [type(module) for module in model] == [Doubled, whitenorm.models.modules.BatchNorm]


def test_timms_norms():
    timm = pytest.importorskip("timm.layers")
    model = nn.ModuleList(
        [timm.BatchNormAct2d(8), timm.GroupNormAct(8, 2), timm.GroupNorm1(8), timm.LayerNorm(8), timm.LayerNorm2d(8)]
    )
    assert run_quietly(convert_, copy.deepcopy(model), "gw", num_groups=2)[1] == []
    split = nn.ModuleList([timm.SplitBatchNorm2d(8), nn.BatchNorm2d(8)])
    assert (
        "0: timm.layers.split_batchnorm.SplitBatchNorm2d has tensors of its own (aux_bn."
        in (run_quietly(convert_, split, "iternorm")[1][0])
    )


class TestWords:
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
    def test_unknown_ones_are_answered(self, layer, where, options, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            convert_(ResNet(), layer, where, **options)

    @pytest.mark.parametrize("where", ["all", "l1", "s1-b2", ["bn1"], "l1+df"])
    def test_a_model_without_norms(self, where):
        with pytest.raises(ValueError, match=r"expected a model with norms \(got Sequential without any"):
            convert_(nn.Sequential(nn.Linear(2, 2)), "gw", where)
