"""A live model, watched for one step, and left as it was."""

import copy
import json
import math

import pytest
import torch
from models import ResNet
from torch import nn

import whitenorm
from whitenorm.diagnostics import condition_number, correlation, inspect, saved_bytes


def test_a_row_for_every_norm_in_the_order_they_run():
    model = whitenorm.convert_(ResNet(), "iternorm", "s1-b2")
    report = inspect(model, torch.randn(16, 3, 8, 8))
    assert [row.name for row in report] == [
        "bn1",
        "blocks.0.bn1",
        "blocks.0.bn2",
        "blocks.1.bn1",
        "blocks.1.bn2",
        "blocks.1.shortcut.1",
    ]
    assert [row.kind for row in report][:3] == ["IterNorm", "BatchNorm2d", "IterNorm"]
    assert [row.width for row in report] == [8, 8, 8, 16, 16, 16]
    assert [row.groups for row in report][:2] == [1, 8]
    assert 0 < sum(row.time_share for row in report) < 1
    assert 0 < sum(row.memory_share for row in report) < 1
    assert all(row.gradient_ratio > 0 for row in report)
    assert all(row.disturbance > 0 for row in report)


def test_numbers_are_those_of_the_measures():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), whitenorm.DecorrelatedBatchNorm(6, 6, eps=1e-6, affine=False))
    x = torch.randn(200, 6)
    (row,) = inspect(model, x)
    features = model[0](x)
    assert row.condition_before == pytest.approx(condition_number(features))
    assert row.condition_after == pytest.approx(condition_number(model[1](features)), rel=1e-3)
    assert row.correlation_before == pytest.approx(correlation(features))
    assert row.correlation_after < 0.01
    assert row.dead == 0


def test_gradient_ratio():
    model = nn.Sequential(nn.BatchNorm1d(4).eval())
    x = torch.randn(50, 4, requires_grad=True)
    with torch.no_grad():
        model[0].running_var.fill_(4.0)
    (row,) = inspect(model, x)
    assert row.gradient_ratio == pytest.approx(0.5, rel=1e-3)


def test_dead_directions_and_drift():
    model = nn.Sequential(nn.BatchNorm1d(4))
    x = torch.randn(500, 4) * torch.tensor([1.0, 1.0, 1.0, 1e-4]) + 10
    (row,) = inspect(model, x)
    assert row.dead == 0.25
    # Mean ten from a population of mean zero and variance one.
    assert row.drift == pytest.approx(10, rel=0.05)
    assert "recalibrate_" in row.advice[0]
    whitenorm.recalibrate_(model, [x], progress=False)
    assert inspect(model, x)[0].drift < 0.5


@pytest.mark.parametrize("population", ["whitening", "covariance"])
def test_no_drift_of_the_batch_that_made_the_population(population):
    model = nn.Sequential(whitenorm.BatchWhitening(4, solver="zca", population=population, eps=1e-8))
    x = torch.randn(400, 4) @ torch.randn(4, 4) + 3
    whitenorm.recalibrate_(model, [x], progress=False)
    assert inspect(model.eval(), x)[0].drift < 1e-2


def test_advice():
    (row,) = inspect(nn.Sequential(whitenorm.IterNorm(64)), torch.randn(8, 64))
    assert "8 values a channel for a covariance of 64 channels" in row.advice[0]
    (row,) = inspect(nn.Sequential(whitenorm.GroupWhitening(32, 64)), torch.randn(8, 64))
    assert "at most 9 are feasible" in row.advice[0]


def test_table_rows_and_json():
    report = inspect(nn.Sequential(whitenorm.GroupWhitening(2, 8)), torch.randn(4, 8, 3, 3))
    assert report[0].disturbance is None
    text = str(report)
    assert text.splitlines()[0].split()[:3] == ["name", "kind", "C"]
    assert "GroupWhitening" in text
    assert json.loads(report.to_json())[0]["width"] == 8
    singular = inspect(nn.Sequential(nn.BatchNorm1d(2)), torch.randn(8, 1).expand(8, 2))
    assert singular[0].condition_before == math.inf
    assert json.loads(singular.to_json())[0]["condition_before"] is None


def test_tokens_dict_batches_and_own_loss():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    report = inspect(model, {"src": torch.randn(2, 5, 16)}, loss=lambda y: y.abs().mean())
    assert [row.name for row in report] == ["norm1", "norm2"]
    assert report[0].width == 16


def test_a_norm_called_by_keyword():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(4)

        def forward(self, x):
            return self.norm(input=x)

    assert inspect(ByKeyword(), torch.randn(16, 4))[0].width == 4


def test_the_model_is_as_it_was():
    model = whitenorm.convert_(ResNet(), "sw")
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    inspect(model, torch.randn(4, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_failure_inside_the_model_leaves_it_as_it_was():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("mine")

    model = nn.Sequential(whitenorm.IterNorm(4), Fails())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="mine"):
        inspect(model, torch.randn(8, 4))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model[0]._forward_hooks
    with pytest.raises(ValueError, match="expected a model with norms"):
        inspect(nn.Linear(2, 2), torch.randn(2, 2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        inspect(nn.Sequential(nn.BatchNorm1d(2)), torch.full((4, 2), float("nan")))


def test_gradient_ratio_beside_a_shortcut():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

        def forward(self, x):
            return x + self.linear(self.norm(x))

    torch.manual_seed(0)
    model, x = Residual(), torch.randn(32, 6, requires_grad=True)
    inner, y = x.detach().requires_grad_(), None
    y = model.norm(inner)
    y.retain_grad()
    (x.detach() + model.linear(y)).square().mean().backward()
    (row,) = inspect(model, x)
    assert row.gradient_ratio == pytest.approx((inner.grad.norm() / y.grad.norm()).item(), rel=1e-5)
    assert x.grad is None


def test_disturbance_is_that_of_all_values():
    few, many = (inspect(nn.BatchNorm1d(4), torch.randn(64, 4, length))[0].disturbance for length in (64, 1024))
    assert few / many == pytest.approx(4, rel=0.15)


def test_memory_leaves_parameters_out():
    model = nn.Sequential(nn.Linear(4, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 4, bias=False))
    x = torch.randn(2, 4)
    (row,) = inspect(model, x, loss=torch.sum)
    hidden = model[0](x).detach().requires_grad_()
    assert row.memory_share == pytest.approx(saved_bytes(model[1], hidden) / saved_bytes(model, x), rel=0.02)


def test_a_population_that_is_not_finite():
    for model in (
        nn.Sequential(nn.BatchNorm1d(2)),
        nn.Sequential(whitenorm.BatchWhitening(2, population="covariance")),
    ):
        model(torch.full((4, 2), math.nan))
        (row,) = inspect(model, torch.randn(16, 2))
        assert "not finite" in row.advice[0]


def test_wide_layers_in_part():
    (row,) = inspect(nn.Sequential(nn.LayerNorm([64, 16, 16])), torch.randn(8, 64, 16, 16))
    assert row.width == 16384
    assert len(row.spectrum_before) == 2048
    (row,) = inspect(nn.Sequential(nn.BatchNorm1d(3000)), torch.randn(8, 3000) + 3)
    assert row.drift == pytest.approx(3, rel=0.1)
    assert row.disturbance is None


def test_channels_of_layer_norms_by_shape():
    class ChannelsFirst(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.movedim(1, -1)).movedim(-1, 1)

    x = torch.randn(8, 6, 5, 5)
    (row,) = inspect(nn.Sequential(ChannelsFirst(6)), x)
    assert row.condition_before == pytest.approx(condition_number(x))


def test_random_numbers_and_hooks_of_the_optimizer():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    inspect(model, torch.ones(8, 4) * torch.arange(8.0)[:, None])
    assert torch.equal(torch.rand(2), expected)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match=r"post-accumulate hook on 0\.weight"):
        inspect(model, torch.randn(8, 4))


def test_nothing_to_train():
    model = nn.Sequential(nn.BatchNorm1d(4)).requires_grad_(False)
    assert inspect(model, torch.randn(8, 4))[0].gradient_ratio is None
    with torch.inference_mode(), pytest.raises(ValueError, match="outside of torch"):
        inspect(model, torch.randn(8, 4))


def test_a_backward_that_is_still_to_come():
    model = nn.Sequential(nn.Linear(4, 4), whitenorm.IterNorm(4)).eval()
    loss = model(torch.randn(8, 4)).square().sum()
    inspect(model, torch.randn(8, 4))
    loss.backward()


def test_buffers_that_the_model_replaces():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("cache", torch.zeros(1))

        def forward(self, x):
            self.cache = torch.cat([self.cache, x.sum().view(1).detach()])
            self.register_buffer("more", torch.ones(1))
            return self.norm(x)

    model = Grows()
    inspect(model, torch.randn(8, 2))
    assert model.cache.tolist() == [0]


def test_errors_name_the_layer_and_advice_for_group_norm():
    with pytest.raises(ValueError, match=r"0 \(GroupNorm\): expected at least 2 values"):
        inspect(nn.Sequential(nn.GroupNorm(1, 4)), torch.randn(1, 4))
    (row,) = inspect(nn.Sequential(nn.GroupNorm(8, 8)), torch.randn(8, 8))
    assert "at most 4 are feasible" in row.advice[0]
    (row,) = inspect(nn.Sequential(whitenorm.IterNorm(8)), torch.randn(8, 8))
    assert "8 values a channel for a covariance of 8" in row.advice[0]


def test_a_compiled_model_that_has_run():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled = torch.compile(net, backend="eager")
    compiled(torch.randn(8, 4))
    assert [row.name for row in inspect(compiled, torch.randn(8, 4))] == ["1"]
