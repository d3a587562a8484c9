"""Recalibration: exact averages over the data, and an unchanged model if something fails."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet
from whitenorm import convert_, recalibrate_


def make_batches(channels=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, channels, 4, 4, generator=generator, dtype=torch.float64) + n for n in (2, 5, 3)]


@pytest.mark.parametrize("population", ["whitening", "covariance"])
@pytest.mark.parametrize("solver", ["newton", "zca"])
def test_statistics_are_those_of_all_data(solver, population):
    layer = whitenorm.BatchWhitening(6, 3, solver, population=population, momentum=0.5, dtype=torch.float64)
    batches = make_batches()
    recalibrate_(nn.Sequential(layer), batches)
    columns = torch.cat(batches).movedim(1, 0).flatten(1)
    centred = (columns - columns.mean(1, keepdim=True)).view(2, 3, -1)
    cov = centred @ centred.mT / centred.shape[-1]
    assert torch.allclose(layer.running_mean, columns.mean(1))
    if population == "covariance":
        assert torch.allclose(layer.running_cov, cov)
    else:
        expected = whitenorm.solvers.inverse_sqrt(cov + layer.eps * torch.eye(3), solver)
        assert torch.allclose(layer.running_whitening, expected)


def test_one_batch_gives_the_output_of_training():
    model = convert_(ResNet(), "dbn").double()
    x = torch.randn(16, 3, 8, 8, dtype=torch.float64)
    expected = copy.deepcopy(model).train()(x)
    assert torch.allclose(recalibrate_(model, [x]).eval()(x), expected, atol=1e-8)


def test_switchable_whitening_and_batch_norm():
    model = nn.Sequential(whitenorm.SwitchableWhitening(6, 3), nn.BatchNorm2d(6)).double()
    batches = make_batches()
    recalibrate_(model, batches)
    columns = torch.cat(batches).movedim(1, 0).flatten(1)
    assert torch.allclose(model[0].running_mean, columns.mean(1))
    norm = nn.BatchNorm2d(6, momentum=None, dtype=torch.float64)
    inputs = torch.cat([whitenorm.SwitchableWhitening(6, 3, dtype=torch.float64)(batch) for batch in batches])
    norm(inputs)
    assert torch.allclose(model[1].running_var, norm.running_var)


def test_batches_of_other_forms():
    x = torch.randn(8, 4)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(4)

        def forward(self, values):
            return self.norm(values)

    for batch in (x, (x, torch.zeros(8)), [x, 0], {"values": x}):
        model = recalibrate_(Named(), [batch])
        assert torch.allclose(model.norm.running_mean, x.mean(0), atol=1e-6)


def test_modes_stay_and_dropout_is_off():
    model = nn.Sequential(whitenorm.IterNorm(4), nn.Dropout(0.5), whitenorm.IterNorm(4)).eval()
    recalibrate_(model, [torch.randn(64, 4)])
    assert not any(module.training for module in model.modules())
    # Dropout of half the values would double their second moment.
    assert (model[2].running_mean.abs() < 0.2).all()
    assert not model[0]._forward_pre_hooks


class Fused(nn.BatchNorm2d):
    """A norm with dropout inside, like timm's."""

    def __init__(self, width):
        super().__init__(width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(super().forward(x))


def test_dropout_inside_a_norm_is_off():
    model = nn.Sequential(Fused(4)).eval()
    seen = []
    model[0].drop.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    recalibrate_(model, [torch.randn(8, 4, 3, 3)])
    assert seen == [False]


def test_streams_keyword_calls_and_empty_batches():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(24.0).view(6, 4))

    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(4)

        def forward(self, x):
            return self.norm(input=x)

    loader = torch.utils.data.DataLoader(Stream(), batch_size=3)
    model = recalibrate_(ByKeyword(), loader)
    assert torch.allclose(model.norm.running_mean, torch.arange(24.0).view(6, 4).mean(0))


def test_an_error_leaves_the_model_unchanged():
    model = convert_(ResNet(), "iternorm").eval()
    before = copy.deepcopy(model.state_dict())

    def batches():
        yield torch.randn(4, 3, 8, 8)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        recalibrate_(model, batches())
    with pytest.raises(RuntimeError):
        recalibrate_(model, [torch.randn(4, 3, 8, 8), torch.randn(4, 5, 8, 8)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training or module._forward_pre_hooks for module in model.modules())


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = whitenorm.IterNorm(4)

    def forward(self, x):
        return x


class Passing(nn.BatchNorm2d):
    """A norm that accepts a single value, unlike its base class."""

    def forward(self, x):
        return x


def test_a_single_value_has_no_variance():
    model = nn.Sequential(Passing(4))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="got 1 batches, and fewer than 2 values"):
        recalibrate_(model, [torch.randn(1, 4, 1, 1)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_wrong_mask_raises_the_layers_error():
    class Masked(Unused):
        def forward(self, x, mask):
            return self.norm(x, mask=mask)

    with pytest.raises(ValueError, match="expected a boolean mask"):
        recalibrate_(Masked(), [{"x": torch.randn(2, 4, 3), "mask": torch.ones(2, 3)}])


def test_errors():
    with pytest.raises(ValueError, match="at least one batch"):
        recalibrate_(nn.Sequential(whitenorm.IterNorm(4)), [])
    with pytest.raises(ValueError, match="got 2 batches, and fewer than 2 values"):
        recalibrate_(Unused(), [torch.zeros(2, 2)] * 2)
    with pytest.raises(ValueError, match="expected 4 channels"):
        recalibrate_(nn.Sequential(nn.BatchNorm2d(4)), torch.randn(3, 4, 5, 5))
    with pytest.raises(ValueError, match="nothing to recalibrate"):
        recalibrate_(nn.Linear(2, 2), [torch.zeros(1, 2)])


def test_progress_is_shown_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    recalibrate_(nn.Sequential(whitenorm.IterNorm(4)), [torch.randn(8, 4)] * 3)
    output = capsys.readouterr().err
    assert "batch 3 of 3, 0 s left" in output
    recalibrate_(nn.Sequential(whitenorm.IterNorm(4)), [torch.randn(8, 4)] * 3, progress=False)
    assert capsys.readouterr().err == ""
