"""Folding with an example, on which the outputs are compared."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import ResNet, convert_and_train, count_layers, make_iternorm, make_pair
from whitenorm import fold_


class DependsOnTypes(nn.Module):
    """A model that takes another path in a symbolic trace, where x is not a tensor."""

    def __init__(self, result=lambda y: y):
        super().__init__()
        self.conv, self.norm, self.result = nn.Conv2d(4, 8, 1), make_iternorm(8), result

    def forward(self, x):
        y = self.conv(x)
        return self.result(self.norm(y) + 0.2 * y if isinstance(x, torch.Tensor) else self.norm(y))


@dataclasses.dataclass
class Result:
    values: torch.Tensor


class Largest(nn.Module):
    def forward(self, y):
        return y.argmax(1), y


class ToHalf(nn.Module):
    def forward(self, x):
        return x.bfloat16()


class MasksOut(nn.Module):
    def forward(self, y):
        return y.masked_fill(torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)


class Empty(nn.Module):
    def forward(self, y):
        return y[:0]


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class ManyOutputs(nn.Module):
    def forward(self, y):
        return {"values": y, "largest": y.argmax(1), "none": y[:0]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "result",
    [
        lambda y: y,
        lambda y: y.argmax(1),
        lambda y: y > 1,
        lambda y: {"a": [y, 3]},
        lambda y: [Result(y)],
        lambda y: (torch.zeros(1), y.sum().item()),
    ],
)
def test_a_wrong_fold_is_an_error(dtype, result):
    model = DependsOnTypes(result).to(dtype).eval()
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="expected the same output after folding"):
        fold_(model, torch.randn(2, 4, 5, 5, dtype=dtype))
    assert count_layers(model) == 1
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_right_fold_is_no_error(dtype):
    """Some of the many values are equal in half precision, so folding changes the argmax."""
    net = nn.Sequential(nn.Conv2d(4, 64, 1), make_iternorm(64, 16), Largest()).to(dtype).eval()
    x = torch.randn(8, 4, 32, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert count_layers(fold_(net, x)) == 0


def test_a_fixed_dtype_in_the_code_is_no_obstacle():
    model = nn.Sequential(ToHalf(), make_pair().bfloat16()).eval()
    assert count_layers(fold_(model, torch.randn(2, 4, 5, 5))) == 0


def test_infinite_outputs_are_compared():
    model = nn.Sequential(make_pair(), MasksOut()).eval()
    assert count_layers(fold_(model, torch.randn(2, 4, 5, 5))) == 0


def test_an_output_without_numbers_is_an_error():
    model = nn.Sequential(make_pair(), Empty()).eval()
    with pytest.raises(ValueError, match="numbers to compare"):
        fold_(model, torch.randn(2, 4, 5, 5))
    assert count_layers(model) == 1


def test_the_check_does_not_change_the_state():
    model = nn.Sequential(Counts(), make_pair()).eval()
    fold_(model, torch.randn(2, 4, 5, 5))
    assert model[0].calls == 0


def test_differences_due_to_rounding_give_a_warning():
    """With nearly singular statistics, float32 loses all digits before and after folding."""
    model = make_pair(whitenorm.IterNorm(8, affine=False)).eval()
    with torch.no_grad():
        model[1].running_whitening.copy_(torch.eye(8) * 1e7)
        model[1].running_mean.fill_(100)
        model[0].bias.fill_(100)
        model[0].weight.mul_(1e-7)
    with pytest.warns(UserWarning, match=r"agree in torch\.float64, but rounding makes them differ"):
        fold_(model, torch.randn(2, 4, 5, 5))


def test_outputs_of_all_kinds():
    model = nn.Sequential(make_pair(), ManyOutputs()).eval()
    assert count_layers(fold_(model, torch.randn(2, 4, 5, 5))) == 0


def test_a_tuple_of_inputs():
    assert count_layers(fold_(convert_and_train(ResNet()), (torch.randn(2, 3, 8, 8),))) == 0


def test_a_folded_model_that_fails_on_the_example():
    model = nn.Sequential(nn.Linear(5, 8), make_iternorm(8)).eval()
    x = torch.randn(2, 8, 5)
    expected = model(x)
    with pytest.raises(ValueError, match="expected vectors"):
        fold_(model, x)
    assert torch.equal(model(x), expected)
