"""Nets for semantic segmentation: strides, heads, places of the norms, trained weights."""

import pytest
import torch
from torch import nn

from lab.tests.helpers.scenes import list_sw_layers, write_weights
from whitenorm_lab.tasks.segmentation import net
from whitenorm_lab.tasks.segmentation.backbones import backbone


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_stride(stride):
    made = backbone("timm:resnet18", stride, 4)
    maps = made.module(torch.randn(2, 3, 64, 96))
    assert tuple(maps[1].shape) == (2, made.channels[1], 64 // stride, 96 // stride)
    assert maps[0].shape[1] == made.channels[0]


def test_torchvision_backbone():
    made = backbone("resnet50", 16)
    assert made.channels == (1024, 2048)
    assert [tuple(maps.shape[2:]) for maps in made.module.eval()(torch.randn(1, 3, 32, 64))] == [(2, 4), (2, 4)]
    assert next(iter(made.module.state_dict())) == "conv1.weight"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet05", {}, "did you mean resnet50"),
        ("resnet18", {}, "use timm:resnet18"),
        ("resnet50", {"width": 8}, "use timm:resnet50"),
        ("resnet50", {"stride": 4}, "8, 16, 32"),
        ("timm:resnet5O", {}, "did you mean"),
        ("timm:vit_tiny_patch16_224", {"width": 8}, "takes stride 8 and width 8"),
    ],
)
def test_unknown_backbone(name, options, words):
    with pytest.raises(ValueError, match=words):
        backbone(name, **options)


@pytest.mark.parametrize(("where", "number"), [("sw-7", 7), ("sw-14", 14)])
@pytest.mark.parametrize("norm", ["sw", "sw5"])
def test_places_of_switchable_whitening(norm, where, number):
    model = net.build("timm:resnet50", 5, norm=norm, where=where, width=4)
    found = list_sw_layers(model)
    assert len(found) == number
    assert found[0] == "backbone.bn1"
    assert all(name.startswith("backbone.layer") and name.endswith(".bn2") for name in found[1:])
    assert not any(name.startswith("backbone.layer4") for name in found)


def test_places_in_a_mobile_net():
    model = net.build("timm:tf_efficientnet_lite0", 5, norm="sw", where="sw-14", stride=32)
    widths = [model.get_submodule(name).num_features for name in list_sw_layers(model)]
    assert widths == [32, 16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192]


def test_every_norm_is_the_heads_too():
    model = net.build("timm:resnet18", 5, norm="gn", width=4, norm_options={"num_groups": 2})
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("head", ["psp", "fcn"])
def test_segmenter(head):
    model = net.build("timm:resnet18", 5, head, width=4)
    images = torch.randn(2, 3, 33, 50)
    scores, others = model(images)
    assert scores.shape == others.shape == (2, 5, 33, 50)
    (scores.sum() + others.sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.eval()(images).shape == (2, 5, 33, 50)
    assert net.build("timm:resnet18", 5, head, width=4, auxiliary=False)(images).shape == (2, 5, 33, 50)


def test_pyramid_sees_the_whole_image():
    model = net.build("timm:resnet18", 2, "psp", width=4, auxiliary=False).eval()
    features = torch.randn(1, 32, 12, 12)
    elsewhere = features.clone()
    elsewhere[..., -1, -1] += 100
    difference = (model.head(features) - model.head(elsewhere)).abs()
    assert difference[..., 0, 0].max() > 1e-4
    fully = net.build("timm:resnet18", 2, "fcn", width=4, auxiliary=False).eval().head
    assert torch.equal(fully(features)[..., 0, 0], fully(elsewhere)[..., 0, 0])


def test_weights_from_a_file(tmp_path):
    state = write_weights(tmp_path / "trained.pt")
    model = net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "trained.pt"))
    own = model.backbone.state_dict()
    assert own
    assert all(torch.equal(value, state[name]) for name, value in own.items())
    model = net.build("timm:resnet18", 5, "psp", "sw", "l1", width=4, weights=str(tmp_path / "trained.pt"))
    first = model.get_submodule(list_sw_layers(model)[0])
    assert torch.equal(first.weight, state["bn1.weight"]), "γ carries over"


def test_weights_of_the_same_norms(tmp_path):
    options = {"norm": "sw", "where": "l1", "width": 4}
    model = net.build("timm:resnet18", 5, **options)
    nn.init.normal_(model.backbone.bn1.cov_logits)
    torch.save({"state_dict": model.backbone.state_dict()}, tmp_path / "sw.pt")
    again = net.build("timm:resnet18", 5, **options, weights=str(tmp_path / "sw.pt"))
    assert torch.equal(again.backbone.bn1.cov_logits, model.backbone.bn1.cov_logits)
    with pytest.raises(ValueError, match="bn1"):
        net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "sw.pt"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bn1.weight": torch.ones(3)}, r"expected bn1.weight of shape \(64,\).*trained.pt \(got \(3,\)\)"),
        ({"bn1.weight": None}, "bn1.weight .*got none"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, changes, words):
    write_weights(tmp_path / "trained.pt", **changes)
    with pytest.raises(ValueError, match=words):
        net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "trained.pt"))


def test_weights_that_are_none(tmp_path):
    with pytest.raises(OSError, match="which is not there"):
        net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "trained.pt"))
    (tmp_path / "cut.pt").write_bytes(b"PK\3\4 and no more")
    with pytest.raises(OSError, match=r"cut.pt \(got what cannot be read"):
        net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "cut.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(OSError, match=r"dict of tensors in .*list.pt"):
        net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "list.pt"))
    with pytest.raises(ValueError, match="or a file"):
        net.build("resnet50", 5, weights="imagenet")
