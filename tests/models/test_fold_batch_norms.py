"""Folding of BatchNorms beside whitening layers."""

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import BatchNormAct2d, ResNet, randomize_norms
from whitenorm import fold_


@pytest.mark.parametrize("where", ["l1", "s1-b2"])
def test_behind_convolutions(where):
    model = randomize_norms(ResNet()).double()
    model = whitenorm.convert_(model, "iternorm", where).eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = model(x)
    folded = fold_(model, x, batch_norms=True)
    assert torch.allclose(folded(x), expected, atol=1e-10)
    assert not any(isinstance(module, (nn.BatchNorm2d, whitenorm.IterNorm)) for module in folded.modules())


def test_batch_norms_elsewhere_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    fold_(model.eval(), batch_norms=True)
    assert [type(module) for module in model[2:4]] == [nn.BatchNorm2d, nn.Conv2d]
    assert isinstance(model[4], nn.Identity)


def test_depthwise_and_without_affine():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4, affine=False))
    model = randomize_norms(model).eval()
    x = torch.randn(2, 4, 6, 6)
    expected = model(x)
    assert torch.allclose(fold_(model, batch_norms=True)(x), expected, atol=1e-5)
    assert isinstance(model[1], nn.Identity)


def test_the_activation_of_a_fused_norm_stays():
    layers = pytest.importorskip("timm.layers")
    model = randomize_norms(nn.Sequential(nn.Conv2d(3, 8, 1), layers.BatchNormAct2d(8))).eval()
    x = torch.randn(2, 3, 6, 6)
    expected = model(x)
    assert torch.allclose(fold_(model, x, batch_norms=True)(x), expected, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_a_class_with_the_same_name_stays():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), BatchNormAct2d(8)).eval()
    with pytest.warns(UserWarning, match="1: stays, because it has a forward of its own"):
        fold_(model, batch_norms=True)
    assert isinstance(model[1], BatchNormAct2d)


def test_batch_norms_stay_by_default():
    model = whitenorm.convert_(ResNet(), "iternorm", "l1").eval()
    fold_(model)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 5
