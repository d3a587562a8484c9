"""Loading of checkpoints with the names and shapes of the papers' code."""

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm import load_published


def make_iternorm_state(prefix=""):
    return {
        f"{prefix}0.weight": torch.rand(3, 1, 1, 1),
        f"{prefix}1.weight": torch.rand(1, 8, 1, 1),
        f"{prefix}1.bias": torch.rand(1, 8, 1, 1),
        f"{prefix}1.running_mean": torch.rand(2, 4, 1),
        f"{prefix}1.running_wm": torch.rand(2, 4, 4),
    }


def make_model(layer):
    return nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), layer)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_iternorm(is_wrapped):
    state = make_iternorm_state("module." if is_wrapped else "")
    net = make_model(whitenorm.IterNorm(8, 4))
    result = load_published(net, {"state_dict": state, "epoch": 90} if is_wrapped else state)
    assert not result.missing_keys
    assert not result.unexpected_keys
    plain = {name.removeprefix("module."): value for name, value in state.items()}
    assert torch.equal(net[0].weight, plain["0.weight"])
    assert torch.equal(net[1].weight, plain["1.weight"].flatten())
    assert torch.equal(net[1].running_mean, plain["1.running_mean"].flatten())
    assert torch.equal(net[1].running_whitening, plain["1.running_wm"])


def test_iternorm_with_one_module_per_group():
    state = make_iternorm_state()
    mean, matrix = state.pop("1.running_mean"), state.pop("1.running_wm")
    for i in range(2):
        state[f"1.iterNorm_Groups.{i}.running_mean"] = mean[i]
        state[f"1.iterNorm_Groups.{i}.running_wm"] = matrix[i]
    net = make_model(whitenorm.IterNorm(8, 4))
    load_published(net, state)
    assert torch.equal(net[1].running_mean, mean.flatten())
    assert torch.equal(net[1].running_whitening, matrix)


def test_switchable_whitening():
    state = {
        "sw_mean_weight": torch.rand(2),
        "sw_var_weight": torch.rand(2),
        "weight": torch.rand(8),
        "bias": torch.rand(8),
        "running_mean": torch.rand(2, 4, 1),
        "running_cov": torch.rand(2, 4, 4),
    }
    layer = whitenorm.SwitchableWhitening(8, 4)
    load_published(layer, state)
    assert torch.equal(layer.mean_logits, state["sw_mean_weight"])
    assert torch.equal(layer.cov_logits, state["sw_var_weight"])
    assert torch.equal(layer.running_cov, state["running_cov"])


def test_group_whitening():
    layer = whitenorm.GroupWhitening(4, 8)
    state = {"weight": torch.rand(1, 8, 1, 1), "bias": torch.rand(1, 8, 1, 1)}
    load_published(layer, state)
    assert torch.equal(layer.bias, state["bias"].flatten())


def test_a_checkpoint_that_does_not_fit_is_an_error():
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_published(make_model(whitenorm.IterNorm(16, 4)), make_iternorm_state())
    with pytest.raises(RuntimeError, match="running_whitening"):
        load_published(nn.Sequential(nn.Identity(), whitenorm.GroupWhitening(4, 8)), make_iternorm_state())
    result = load_published(
        nn.Sequential(nn.Identity(), whitenorm.GroupWhitening(4, 8)), make_iternorm_state(), strict=False
    )
    assert "1.running_whitening" in result.unexpected_keys
