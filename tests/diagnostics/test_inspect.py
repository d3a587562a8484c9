"""Inspection of a live model, which is restored afterwards."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet
from whitenorm.diagnostics import Inspection, condition_number, correlation, inspect, saved_bytes
from whitenorm.diagnostics.destinations import collect_scalars
from whitenorm.diagnostics.page import table
from whitenorm.diagnostics.reports import COLUMNS


def test_one_row_per_norm_in_the_order_they_run():
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


def test_rows_agree_with_the_measures():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), whitenorm.DecorrelatedBatchNorm(6, 6, eps=1e-6, affine=False))
    x = torch.randn(200, 6)
    (row,) = inspect(model, x)
    features = model[0](x)
    assert row.condition_before == pytest.approx(condition_number(features))
    assert row.condition_after == pytest.approx(condition_number(model[1](features)), rel=1e-3)
    assert row.correlation_before == pytest.approx(correlation(features))
    assert row.correlation_after < 0.01
    assert row.dead_before == row.dead_after == 0


def test_gradient_ratio():
    model = nn.Sequential(nn.BatchNorm1d(4).eval())
    x = torch.randn(50, 4, requires_grad=True)
    with torch.no_grad():
        model[0].running_var.fill_(4.0)
    (row,) = inspect(model, x)
    assert row.gradient_ratio == pytest.approx(0.5, rel=1e-3)


def test_advice():
    (row,) = inspect(nn.Sequential(whitenorm.IterNorm(64)), torch.randn(8, 64))
    assert "8 values per channel for a covariance of 64 channels" in row.advice[0]
    (row,) = inspect(nn.Sequential(whitenorm.GroupWhitening(32, 64)), torch.randn(8, 64))
    assert "at most 9 are feasible" in row.advice[0]


def test_table_rows_and_json():
    report = inspect(nn.Sequential(whitenorm.GroupWhitening(2, 8)), torch.randn(4, 8, 3, 3))
    assert report[0].disturbance is None
    text = str(report)
    assert text.splitlines()[0].split()[:3] == ["name", "kind", "C"]
    assert "GroupWhitening" in text
    assert json.loads(report.to_json())[0]["width"] == 8
    constant = inspect(nn.Sequential(nn.BatchNorm1d(2)), torch.ones(8, 2))
    assert math.isnan(constant[0].condition_before)
    assert json.loads(constant.to_json())[0]["condition_before"] is None
    assert "dead layer" in constant[0].advice[0]


def test_all_formats_have_the_same_columns():
    keys = list(COLUMNS)
    report = inspect(nn.Sequential(whitenorm.IterNorm(8)), torch.randn(64, 8, requires_grad=True))
    assert list(report.to_dicts()[0]) == list(json.loads(report.to_json())[0]) == [*keys, "advice"]
    assert ["name", "kind", *(key for column in table.COLUMNS for key in column.keys)] == keys
    assert str(report).splitlines()[0].split() == " ".join(COLUMNS.values()).split()
    assert {f"norm/0/{key}" for key in keys[4:]} - set(collect_scalars(report)) == {"norm/0/drift"}


def test_condition_numbers_ignore_dead_directions():
    torch.manual_seed(0)
    x = torch.randn(400, 20) * torch.linspace(1, 3, 20)
    (row,) = inspect(nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50)), x)
    assert (row.dead_before, row.dead_after) == (30, 30)
    assert 1 < row.condition90_before < row.condition_before < 1e4
    assert 1 < row.condition90_after < row.condition_after < 1e4
    assert row.advice == []
    (row,) = inspect(nn.Sequential(nn.LayerNorm(20)), x)
    assert (row.dead_before, row.dead_after) == (0, 1)
    assert row.condition_after == pytest.approx(row.condition_before, rel=0.5)


@pytest.mark.parametrize("solver", ["newton", "zca"])
def test_whitening_does_not_revive_dead_directions(solver):
    """It amplifies rounding errors in dead directions."""
    torch.manual_seed(0)
    layer = whitenorm.BatchWhitening(32, solver=solver, eps=1e-8)
    (row,) = inspect(nn.Sequential(nn.Linear(8, 32), layer), torch.randn(256, 8))
    assert (row.dead_before, row.dead_after) == (24, 24)
    assert row.condition_after < row.condition_before < 1e3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0, 3])
def test_dead_directions_depend_on_the_dtypes_rounding(dtype, offset):
    torch.manual_seed(0)
    x = (torch.randn(512, 24) + offset).to(dtype)
    (row,) = inspect(nn.Sequential(nn.LayerNorm(24, dtype=dtype)), x)
    assert (row.dead_before, row.dead_after) == (0, 1)


def test_advice_for_a_batch_too_small_for_the_measures():
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64))
    (row,) = inspect(model, torch.randn(16, 8))
    assert row.dead_before >= 64 - 15
    assert row.condition_before < math.inf
    assert "16 values of 64 features vary in 15 directions at most" in row.advice[0]
    assert "use a batch that is 16 times as large" in row.advice[0]
    (row,) = inspect(model, torch.randn(256, 8))
    assert row.advice == []


@pytest.mark.parametrize(
    ("library", "make", "name", "size"),
    [("torchvision.models", "get_model", "resnet18", 64), ("timm", "create_model", "vit_tiny_patch16_224", 224)],
)
def test_condition_numbers_of_whole_models_are_finite(library, make, name, size):
    library = pytest.importorskip(library)
    torch.manual_seed(0)
    reports = inspect(getattr(library, make)(name).requires_grad_(False), torch.randn(2, 3, size, size))
    assert all(1 < row.condition_after < math.inf for row in reports)
    assert all(1 < row.condition90_after <= row.condition_after for row in reports)


def test_equal_advice_is_printed_once_with_all_layers():
    block = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    report = inspect(nn.Sequential(block, copy.deepcopy(block)), torch.randn(16, 64))
    assert str(report).splitlines()[-1].startswith("0.1, 1.1: 16 values of 64 features")
    assert list(report.advice().values()) == [["0.1", "1.1"]]


def test_slices_are_inspections():
    report = inspect(ResNet(), torch.randn(16, 3, 8, 8))
    assert isinstance(report[1:3], Inspection)
    assert [row.name for row in report[1:3]] == ["blocks.0.bn1", "blocks.0.bn2"]
    assert report[-1].name == "blocks.1.shortcut.1"


def test_a_constant_output_has_no_condition_number():
    """Such as that of a residual block whose last γ is initialized to zero."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    nn.init.zeros_(model[1].weight)
    report = inspect(model, torch.randn(64, 4))
    assert report[1].dead_after == 4
    assert math.isnan(report[1].condition_after)
    assert "nan" not in str(report)
    assert "NaN" not in report.to_html()


def test_a_norm_that_cannot_be_measured_gets_a_row():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(1, 4), nn.AdaptiveAvgPool2d(1), nn.GroupNorm(1, 4))
    first, second = inspect(model, torch.randn(1, 3, 8, 8))
    assert first.condition_before > 1
    assert math.isnan(second.condition_before)
    assert second.dead_before is None
    assert second.time_share > 0
    assert "one value has no covariance" in second.advice[0]


@pytest.mark.parametrize("lazy", [nn.LazyBatchNorm1d, nn.LazyBatchNorm2d])
def test_a_lazy_norm(lazy):
    shape = (16, 6, 4, 4) if lazy is nn.LazyBatchNorm2d else (16, 6)
    model = nn.Sequential(lazy())
    with pytest.raises(ValueError, match=r"expected a model whose lazy modules have run .*got 0, a LazyBatchNorm"):
        inspect(model, torch.randn(shape))
    model(torch.randn(shape))
    assert inspect(model, torch.randn(shape))[0].width == 6


def test_tokens_with_a_dict_batch_and_a_loss():
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


def test_the_model_is_restored():
    model = whitenorm.convert_(ResNet(), "sw")
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    inspect(model, torch.randn(4, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_model_is_restored_after_an_error():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("from the model")

    model = nn.Sequential(whitenorm.IterNorm(4), Fails())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="from the model"):
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
    inner = x.detach().requires_grad_()
    y = model.norm(inner)
    y.retain_grad()
    (x.detach() + model.linear(y)).square().mean().backward()
    (row,) = inspect(model, x)
    assert row.gradient_ratio == pytest.approx((inner.grad.norm() / y.grad.norm()).item(), rel=1e-5)
    assert x.grad is None


def test_disturbance_accounts_for_values_not_sampled():
    (short,), (long,) = (inspect(nn.BatchNorm1d(4), torch.randn(64, 4, length)) for length in (64, 1024))
    assert short.disturbance / long.disturbance == pytest.approx(4, rel=0.15)


def test_memory_excludes_parameters():
    model = nn.Sequential(nn.Linear(4, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 4, bias=False))
    x = torch.randn(2, 4)
    (row,) = inspect(model, x, loss=torch.sum)
    hidden = model[0](x).detach().requires_grad_()
    assert row.memory_share == pytest.approx(saved_bytes(model[1], hidden) / saved_bytes(model, x), rel=0.02)


def test_advice_for_a_population_that_is_not_finite():
    for model in (
        nn.Sequential(nn.BatchNorm1d(2)),
        nn.Sequential(whitenorm.BatchWhitening(2, population="covariance")),
    ):
        model(torch.full((4, 2), math.nan))
        (row,) = inspect(model, torch.randn(16, 2))
        assert "not finite" in row.advice[0]


def test_wide_layers_are_measured_in_part():
    (row,) = inspect(nn.Sequential(nn.LayerNorm([64, 16, 16])), torch.randn(8, 64, 16, 16))
    assert row.width == 16384
    assert len(row.spectrum_before) == 2048


def test_layer_norm_of_channels_in_dimension_one():
    class ChannelsFirst(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.movedim(1, -1)).movedim(-1, 1)

    x = torch.randn(8, 6, 5, 5)
    (row,) = inspect(nn.Sequential(ChannelsFirst(6)), x)
    assert row.condition_before == pytest.approx(condition_number(x))


def test_random_state_is_restored_and_optimizer_hooks_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    inspect(model, torch.ones(8, 4) * torch.arange(8.0)[:, None])
    assert torch.equal(torch.rand(2), expected)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match=r"post-accumulate hook on 0\.weight"):
        inspect(model, torch.randn(8, 4))


def test_a_model_without_trainable_parameters():
    model = nn.Sequential(nn.BatchNorm1d(4)).requires_grad_(False)
    assert inspect(model, torch.randn(8, 4))[0].gradient_ratio is None
    with torch.inference_mode(), pytest.raises(ValueError, match="outside of torch"):
        inspect(model, torch.randn(8, 4))


def test_a_pending_backward_still_works():
    model = nn.Sequential(nn.Linear(4, 4), whitenorm.IterNorm(4)).eval()
    loss = model(torch.randn(8, 4)).square().sum()
    inspect(model, torch.randn(8, 4))
    loss.backward()


def test_replaced_buffers_are_restored():
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


def test_errors_name_the_layer_and_advice_for_few_values():
    with pytest.raises(ValueError, match=r"0 \(GroupNorm\): expected at least 2 values"):
        inspect(nn.Sequential(nn.GroupNorm(1, 4)), torch.randn(1, 4))
    (row,) = inspect(nn.Sequential(nn.GroupNorm(8, 8)), torch.randn(8, 8))
    assert "at most 4 are feasible" in row.advice[0]
    (row,) = inspect(nn.Sequential(whitenorm.IterNorm(8)), torch.randn(8, 8))
    assert "8 values per channel for a covariance of 8" in row.advice[0]


def test_a_compiled_model_that_has_run():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled = torch.compile(net, backend="eager")
    compiled(torch.randn(8, 4))
    assert [row.name for row in inspect(compiled, torch.randn(8, 4))] == ["1"]


def test_instance_and_rms_norms_are_inspected():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.Flatten(2), nn.RMSNorm(36))
    report = inspect(model, torch.randn(4, 3, 8, 8))
    assert [(row.name, row.width) for row in report] == [("1", 8), ("3", 36)]
