"""Training from trained weights: files, other classes, and norms that replace trained BatchNorms."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import whitenorm
from whitenorm_lab import nets
from whitenorm_lab.cli import main
from whitenorm_lab.nets.calibration import match_moments_, measure_batch_norms
from whitenorm_lab.training import Train, fit, load

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, *SHAPE, generator=torch.Generator().manual_seed(0)) * 2 + 1


@pytest.fixture(scope="module")
def net_and_file(images, tmp_path_factory):
    """A net with running statistics of data and random γ and β, and the file of its weights."""
    net = nets.build("cnn-3", 5, shape=SHAPE, width=8)
    for _ in range(20):
        net(images)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(torch.randn(8, generator=generator))
                module.bias.copy_(torch.randn(8, generator=generator))
    path = tmp_path_factory.mktemp("weights") / "net.pt"
    torch.save(net.state_dict(), path)
    return net.eval(), path


def build_net(path, norm="bn", classes=5, **options):
    return nets.build("cnn-3", classes, norm, shape=SHAPE, width=8, weights=str(path), **options).eval()


@pytest.mark.parametrize("norm", ["bn", "iternorm", "bw-sigma", "dbn"])
def test_batch_methods_keep_the_outputs(norm, net_and_file, images):
    net, path = net_and_file
    with torch.no_grad():
        torch.testing.assert_close(build_net(path, norm)(images), net(images), rtol=1e-3, atol=1e-3)


def test_other_classes_get_a_new_head(net_and_file, images):
    net, path = net_and_file
    other = build_net(path, classes=7)
    assert other(images).shape == (40, 7)
    torch.testing.assert_close(other.state_dict()["0.weight"], net.state_dict()["0.weight"])


@pytest.mark.parametrize("norm", ["gw", "gn", "ln"])
def test_matched_norms_keep_the_moments(norm, net_and_file, images):
    """Each norm gets BatchNorm's moments, and the net's outputs come closer to the original ones."""
    net, path = net_and_file
    options = {"norm_options": {"num_groups": 4}} if norm != "ln" else {}
    matched = build_net(path, norm, images=images, **options)
    outputs = {}
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: outputs.update({module: output}))
        for module in [*net.modules(), *matched.modules()]
        if isinstance(module, (nn.BatchNorm2d, whitenorm.GroupWhitening, nn.GroupNorm, nn.LayerNorm))
    ]
    with torch.no_grad():
        expected, actual = net(images), matched(images)
        unmatched = build_net(path, norm, **options)(images)
    for hook in hooks:
        hook.remove()
    assert len(outputs) == 6
    values = list(outputs.values())
    for one, other in zip(values[:3], values[3:], strict=True):
        torch.testing.assert_close(other.mean((0, 2, 3)), one.mean((0, 2, 3)), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(other.std((0, 2, 3)), one.std((0, 2, 3)), rtol=1e-3, atol=1e-3)
    assert F.mse_loss(actual, expected) < F.mse_loss(unmatched, expected)


def test_matching_changes_only_parameters(net_and_file, images):
    model = nets.build("cnn-3", 5, shape=SHAPE, width=8, weights=str(net_and_file[1]))
    model[1].eval()
    targets = measure_batch_norms(model, images)
    assert model.training
    assert not model[1].training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    match_moments_(model, targets, images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_activations_that_are_part_of_a_norm(images):
    """timm's norms include the ReLU."""
    pytest.importorskip("timm")
    net = nets.build("timm:tf_efficientnet_lite0", 5, shape=SHAPE).eval()
    targets = measure_batch_norms(net, images)
    whitenorm.convert_(net, "gw", ["bn1"], num_groups=4)
    match_moments_(net, targets, images)
    with torch.no_grad():
        output = net.bn1[0](net.conv_stem(images))
    torch.testing.assert_close(output.mean((0, 2, 3)), targets["bn1"].mean, rtol=1e-3, atol=1e-4)
    assert output.min() < 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "which is not there"),
        (b"something", "cannot be read"),
        ([1, 2], "expected a dict of tensors"),
        ({"0.weight": torch.ones(2)}, "expected 0.weight of shape"),
        ({}, "expected 0.weight of shape .*got none"),
    ],
)
def test_bad_files_are_named(content, message, tmp_path):
    path = tmp_path / "bad.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises((OSError, ValueError), match=message) as error:
        build_net(path)
    assert str(path) in str(error.value)


def test_imagenet_weights_are_for_one_net():
    with pytest.raises(ValueError, match="expected the net timm:tf_efficientnet_lite0"):
        nets.build("resnet20", 10, weights="imagenet")


def test_training_from_a_file(tmp_path):
    """Train by the command; the run loads without the file of its initial weights."""
    config = {"net": "cnn-2", "width": 8, "dataset": "digits", "resize": 12, "quiet": True}
    first = tmp_path / "first"
    fit(Train(**config, epochs=2, lr=0.05, folder=first))
    second, start = tmp_path / "second", tmp_path / "start.pt"
    (first / "weights.pt").rename(start)
    options = ["--net", "cnn-2", "--width", "8", "--dataset", "digits", "--resize", "12", "--norm", "gw"]
    options += ["--num-groups", "4", "--weights", str(start), "--epochs", "1", "--lr", "0.01", "--quiet"]
    assert main(["train", "custom", *options, "--folder", str(second)]) == 0
    start.unlink()
    assert isinstance(load(second)[1], whitenorm.GroupWhitening)
    assert load(second)(torch.randn(2, 1, 12, 12)).shape == (2, 10)
    assert main(["evaluate", str(second)]) == 0


@pytest.mark.parametrize("number", [0, 50])
def test_calibration_by_configuration(number, tmp_path):
    """After a step with learning rate 0, γ and β are those of the file, or matched."""
    config = {"net": "cnn-2", "width": 8, "dataset": "digits", "quiet": True, "lr": 0.0, "steps": 1}
    fit(Train(**config, folder=tmp_path / "first"))
    start = tmp_path / "first" / "weights.pt"
    config |= {"weights": str(start), "norm": "gw", "num_groups": 4, "calibrate": number}
    fit(Train(**config, folder=tmp_path / "second"))
    before, after = torch.load(start), load(tmp_path / "second").state_dict()
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert torch.equal(before["1.weight"], after["1.weight"]) == (number == 0)


def test_bw_sigma_uses_zca_with_weights():
    """Five Newton steps would change the outputs of a trained BatchNorm."""
    assert Train(norm="bw-sigma").norm_options() == {"solver": "newton"}
    assert Train(norm="bw-sigma", weights="imagenet").norm_options() == {}
    assert Train(norm="bw-sigma", weights="imagenet", solver="newton").norm_options() == {"solver": "newton"}


def test_resize_is_only_for_data_sets_in_memory():
    with pytest.raises(ValueError, match="expected --image-size for an image folder"):
        Train(dataset="imagefolder:x", resize=96)
