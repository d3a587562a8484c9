"""Measurements and costs: what is timed is what it says, and what is printed is judged against it."""

import pytest
import torch
from torch import nn

import whitenorm
from lab.tests.helpers.judging import get_verdict
from whitenorm_lab import costs, published
from whitenorm_lab.claims.experiment import Context
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.nets import build
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.iternorm import snd as iternorm_snd
from whitenorm_lab.papers.shared import overheads
from whitenorm_lab.papers.shared.gaussians import normalize
from whitenorm_lab.papers.sw.placement import list_norms_in_order


def test_normalize_is_groupnorm_and_batchnorm():
    x = torch.randn(12, 8, dtype=torch.float64)
    assert torch.allclose(normalize(x, "GN", 4), nn.functional.group_norm(x, 2, eps=1e-12))
    expected = torch.cat([nn.functional.batch_norm(part, None, None, training=True, eps=1e-12) for part in x.split(6)])
    assert torch.allclose(normalize(x, "BN", 6), expected)
    assert normalize(x, "base", 1) is x


def test_norms_of_the_figures():
    assert isinstance(iternorm_snd.build_norm("BN", 8), nn.BatchNorm1d)
    assert iternorm_snd.build_norm("DBN", 8).group_size == 8
    norm = iternorm_snd.build_norm("IterNorm T=7", 128)
    assert (norm.group_size, norm.solver.steps) == (128, 7)


def test_norms_in_the_order_of_work():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.downsample = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.last(self.first(x)) + self.downsample(x)

    assert list_norms_in_order(Backwards()) == ["first", "last"]
    assert len(list_norms_in_order(build("resnet20", 10))) == 19


def test_flops_are_counted_without_arithmetic():
    choice = costs.RESNET50["SW^a 7 layers"]
    with torch.device("meta"):
        meta = costs.count_gflops(costs.build_net("resnet-tiny", 10, choice), 64)
    assert meta == costs.count_gflops(costs.build_net("resnet-tiny", 10, choice), 64)
    assert meta > costs.count_gflops(costs.build_net("resnet-tiny", 10), 64)


def test_dilated_resnet_keeps_an_eighth():
    net = costs.build_net("resnet50-dilated", 10, costs.RESNET50["BW 14 layers"])
    assert sum(isinstance(module, whitenorm.DecorrelatedBatchNorm) for module in net.modules()) == 14
    sizes = []
    net.layer4.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[2:]))
    with torch.no_grad():
        net.eval()(torch.zeros(1, 3, 32, 32))
    assert sizes == [(4, 4)]


def test_printed_percentages():
    assert published.STEP_PERCENT["GW S1-B3"] == pytest.approx(51.3, abs=0.05)
    assert published.S1_B2_PERCENT["resnext50_32x4d"]["BW_Σ S1-B2"] == pytest.approx(39.0, abs=0.05)
    assert published.TO_CONVOLUTION["DBN", 128] == pytest.approx(2.57, abs=0.005)


def test_judging_overheads():
    def runs(model, percent):
        return [Run({"table": "1", "model": model}, i, {"step": percent + i}, 1.0) for i in range(3)]

    results = Results(runs("BW", 5) + runs("SW", 12) + runs("other", 100))
    assert get_verdict(overheads.expect_at_most_printed("step", {"BW": 10, "SW": 20}, "1")(results)) == "held"
    assert get_verdict(overheads.expect_at_most_printed("step", {"BW": 10, "SW": 8}, "1")(results)) == "not held"
    assert get_verdict(overheads.expect_rising_step_times(["BW", "SW", "other"], "1")(results)) == "held"
    assert get_verdict(overheads.expect_rising_step_times(["SW", "BW"], "1")(results)) == "not held"


def test_models_of_a_table_are_timed_together(monkeypatch):
    """The ratio is of the norm's net to BatchNorm's, and not the other way; the kernels are those of the norm's net."""
    scale = {"batch": 8, "resolution": 64, "classes": 10, "rounds": 3}
    choice = costs.VGG_A["DBN-G8"]
    settings = overheads.build_settings("1", "cnn-4", {"slow": choice, "whitened": choice}, scale)
    slow = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(40)], nn.Flatten(), nn.Linear(3 * 64**2, 10))
    fast = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64**2, 10))
    whitened = nn.Sequential(whitenorm.DecorrelatedBatchNorm(3, 3), nn.Flatten(), nn.Linear(3 * 64**2, 10))
    nets = {"BatchNorm": fast, "slow": slow, "whitened": whitened}
    monkeypatch.setattr(overheads, "_build_nets", lambda net, classes, models: nets)
    runs = Results([Run(settings, seed, overheads.run(settings, Context(seed)), 1.0) for seed in range(2)])
    assert [run.values.get("kernels") for run in runs] == [{"slow": "", "whitened": "torch"}, None]
    split = overheads.split_models(runs)
    assert split.levels("model") == ["slow", "whitened"]
    assert min(split.values("step", model="slow") + split.values("inference", model="slow")) > 50
    assert len(split.values("step", table="1", model="whitened")) == 2


def test_runs_of_one_model_are_not_split():
    results = Results([Run({"model": "resnet18"}, 0, {"step": 1.0}, 1.0)])
    assert overheads.split_models(results) == results


def test_cost_experiments_repeat_thirty_rounds():
    for name in ("dbn-cost", "iternorm-cost", "sw-cost", "gw-cost"):
        experiment = EXPERIMENTS[name]
        for settings in experiment.plan(experiment.scales["default"]):
            assert settings.get("rounds", 30) * experiment.seeds["default"] >= 30
