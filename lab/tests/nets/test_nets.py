"""Networks of the papers: sizes, norms and their places, and errors for invalid options."""

import sys

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm.layers import Whitening
from whitenorm.models import find_norms
from whitenorm_lab import nets
from whitenorm_lab.nets.norms import WHITENING

# Millions of parameters as printed in the papers, and the number of norms: one per convolution, except for the stem and
# the shortcuts of WRN.
SIZES = {
    "resnet20": (0.27, 19),
    "resnet32": (0.46, 31),
    "resnet44": (0.66, 43),
    "resnet56": (0.85, 55),
    "wrn-28-10": (36.5, 25),
    "wrn-40-10": (55.8, 37),
    "vgg-a": (9.2, 8),
    "vgg-16conv": (20.0, 16),
    "s-plain-20": (0.38, 19),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters_and_norms(name):
    with torch.device("meta"):
        net = nets.build(name, 10)
        assert net(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    millions, norms = SIZES[name]
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
    assert len(find_norms(net)) == norms


NETS = ["vgg-a", "cnn-2", "resnet8", "wrn-10-1", "mlp-16-16"]
# IW whitens over positions, and vectors have only one.
NEEDS_POSITIONS = ("iw",)


@pytest.mark.parametrize(
    ("name", "norm"),
    [(name, norm) for name in NETS for norm in nets.NORMS if not (name == "mlp-16-16" and norm in NEEDS_POSITIONS)],
)
def test_every_norm_in_every_net(name, norm):
    """One training step has finite gradients, and no BatchNorm remains."""
    net = nets.build(name, 3, norm, shape=(3, 32, 32))
    y = net(torch.randn(4, 3, 32, 32))
    y.logsumexp(1).sum().backward()
    assert y.shape == (4, 3)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    batch_norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert bool(batch_norms) == (norm == "bn")
    assert bool(find_norms(net)) == (norm != "none")
    assert any(isinstance(m, Whitening) for m in net.modules()) == (norm in WHITENING)


def test_torchvision_nets():
    net = nets.build("resnet18", 3, "gw", "s1-b2")
    assert sum(isinstance(m, whitenorm.GroupWhitening) for m in net.modules()) == 9
    assert net(torch.randn(2, 3, 64, 64)).shape == (2, 3)


def test_timm_nets(monkeypatch):
    net = nets.build("timm:resnet10t", 3, "iternorm", "l1", shape=(1, 32, 32))
    assert sum(isinstance(m, whitenorm.IterNorm) for m in net.modules()) == 1
    assert net(torch.randn(2, 1, 32, 32)).shape == (2, 3)
    net = nets.build("timm:vit_tiny_patch16_224", 3, shape=(3, 32, 32))
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="pip install timm"):
        nets.build("timm:resnet10t", 3)


def test_norms_without_bias():
    for norm in ("bn", "gn", "dbn", "iternorm", "gw", "sw"):
        net = nets.build("cnn-2", 3, norm, norm_options={"bias": False})
        placed = net[1]
        assert placed.weight is not None
        assert placed.bias is None
        net(torch.randn(4, 3, 8, 8)).sum().backward()


def test_translated_relu():
    """The gradient of α is that of the values below it, and α is learnt in every net."""
    activation = nets.ACTIVATIONS["trelu"](2)
    x = torch.randn(5, 2, 3, 3, requires_grad=True)
    activation(x).sum().backward()
    assert torch.equal(activation(x), x.relu())
    assert torch.equal(activation.threshold.grad, (x < 0).float().sum((0, 2, 3)))
    for name in NETS:
        net = nets.build(name, 3, "dbn", activation="trelu", norm_options={"affine": False})
        net(torch.randn(4, 3, 32, 32)).logsumexp(1).sum().backward()
        thresholds = [p for key, p in net.named_parameters() if "threshold" in key]
        assert thresholds
        assert all(p.grad is not None for p in thresholds)


def test_lecun_initialization():
    net = nets.build("vgg-a", 10, init="lecun")
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            inputs = module.weight[0].numel()
            assert float(module.weight.detach().std()) == pytest.approx(inputs**-0.5, rel=0.05)


def test_convolutions_without_norms_have_a_bias():
    with_norm, without = nets.build("cnn-2", 3), nets.build("cnn-2", 3, "none")
    assert with_norm[0].bias is None
    assert without[0].bias is not None


PLACES = {
    ("resnet20", "l1"): [1],
    ("resnet20", "sw-cifar"): [1, 4, 8, 12, 16],
    ("resnet20", "s1-b2"): [1, *range(3, 20, 2)],
    ("vgg-a", "l1"): [1],
    ("wrn-16-1", "l1"): [1],
    ("s-plain-20", "all"): list(range(1, 20)),
}


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_places(name, where):
    """Norms are numbered from 1 in the order in which they run."""
    order = []
    net = nets.build(name, 10, "dbn", where, norm_options={"affine": False})
    kinds = (nn.BatchNorm2d, whitenorm.DecorrelatedBatchNorm)
    for module in net.modules():
        if isinstance(module, kinds):
            module.register_forward_pre_hook(lambda module, _: order.append(module))
    net(torch.randn(2, 3, 32, 32))
    placed = [i for i, m in enumerate(order, 1) if isinstance(m, whitenorm.DecorrelatedBatchNorm)]
    assert placed == PLACES[name, where]
    assert all(order[i - 1].weight is None for i in placed)


def test_options_reach_the_norms():
    net = nets.build("vgg-16conv", 10, "iternorm", norm_options={"group_size": 512, "steps": 3})
    layers = [m for m in net.modules() if isinstance(m, whitenorm.IterNorm)]
    assert [layer.group_size for layer in layers] == [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert {layer.solver.steps for layer in layers} == {3}
    assert nets.build("cnn-1", 3, "gn", norm_options={"num_groups": 4})[1].num_groups == 4
    assert nets.build("cnn-1", 3, "bn", norm_options={"affine": False})[1].weight is None
    assert nets.build("cnn-1", 3, lambda width: whitenorm.IterNorm(width, 2))[1].group_size == 2


def test_norm_last_and_activation():
    kinds = [type(m).__name__ for m in nets.build("vgg-a", 10, norm_last=True, activation="elu")]
    assert kinds[:4] == ["Conv2d", "ELU", "BatchNorm2d", "MaxPool2d"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "resnext"}, "vgg-16conv"),
        ({"name": "resnet21"}, "6n"),
        ({"name": "wrn-28-10", "width": 3}, "width"),
        ({"name": "mlp-8", "norm_last": True}, "norm_last"),
        ({"name": "resnet20", "norm": "batch"}, "iternorm"),
        ({"name": "resnet20", "norm": "dbn", "where": "first"}, "sw-cifar"),
        ({"name": "resnet20", "norm": "gw", "norm_options": {"group_size": 8}}, "group_size"),
        ({"name": "resnet20", "norm": "ln", "norm_options": {"num_groups": 8}}, "num_groups"),
        ({"name": "vgg-a", "activation": "gelu"}, "elu"),
        ({"name": "resnet18", "shape": (1, 28, 28)}, "3 channels"),
    ],
)
def test_errors_list_the_choices(options, words):
    with pytest.raises(ValueError, match="expected") as error:
        nets.build(num_classes=10, **options)
    assert words in str(error.value)
