"""Detection: data sets, the norms of each part, training and scores, on small images of colored squares."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision.io import write_png
from torchvision.ops import FrozenBatchNorm2d

from lab.tests.helpers.coco_files import SIDE, build_content, build_square, write_coco
from lab.tests.helpers.image_sets import make_png_header
from lab.tests.helpers.runs import Stop
from whitenorm import GroupWhitening
from whitenorm_lab import tasks
from whitenorm_lab.cli import main
from whitenorm_lab.nets import build as build_net
from whitenorm_lab.tasks.detection import COMMANDS, Detection, weights
from whitenorm_lab.tasks.detection.dataset import DetectionDataset, read_datasets
from whitenorm_lab.tasks.detection.metric import COLUMNS, AveragePrecision
from whitenorm_lab.tasks.detection.model import build_detector
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.optimization import compute_lr_factor
from whitenorm_lab.training.result import TrainingResult
from whitenorm_lab.training.run import fit

# Images of 48 pixels and a narrow detector.
SMALL = {"net": "resnet18", "min_size": SIDE, "max_size": 64, "anchor_size": 8, "fpn_channels": 16, "head_width": 16}
SMALL |= {"proposals": 20, "rois": 8, "batch_size": 2, "epochs": 2, "lr": 0.005, "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return write_coco(tmp_path_factory.mktemp("coco"))


def config(dataset, /, **options):
    return Detection(**{**SMALL, "dataset": f"coco:{dataset}", **options})


def test_crowds_and_boxes_without_area(tmp_path):
    """Training omits them and images with nothing else; tests include them."""
    content = build_content()
    content["annotations"][0] |= {"iscrowd": 1, "segmentation": {"counts": [0, SIDE * SIDE], "size": [SIDE, SIDE]}}
    content["annotations"] += [build_square(200, 11, box=(5, 5, 0, 9)), build_square(201, 11, box=(-0.4, 30, 10, 18.7))]
    write_coco(tmp_path, content)
    images = read_datasets(config(tmp_path))[0].images
    assert [len(image.trainable()) for image in images] == [0, 2, 1, 1]
    assert images[1].boxes[2] == [0.0, 30.0, 9.6, 48.0], "cut to the image"
    target = DetectionDataset(images, True, False, False)[0][1]
    assert target["iscrowd"].tolist() == [1]
    assert target["masks"].all(), "run lengths"
    task = tasks.build_task(config(tmp_path, batch_size=3))
    source = task.build_loaders(None, lambda: 0, 0, 1)
    assert len(source.train) == 1
    source.close()


def test_separate_files_for_training_and_test(tmp_path):
    for split, images in (("train", 4), ("val", 2)):
        write_coco(tmp_path / f"{split}2017", build_content(images))
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / f"{split}2017/instances.json").rename(tmp_path / f"annotations/instances_{split}2017.json")
        for image in (tmp_path / f"{split}2017/images").iterdir():
            image.rename(image.parent.parent / image.name)
    train, test = read_datasets(config(tmp_path))
    assert (len(train.images), len(test.images)) == (4, 2)
    other = build_content(2)
    other["categories"][0]["name"] = "blue"
    (tmp_path / "annotations/instances_val2017.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="only in one of them: blue, green"):
        read_datasets(config(tmp_path))


def test_flip(folder):
    annotated = read_datasets(config(folder))[0].images[0]
    plain = DetectionDataset([annotated], True, True, False)[0]
    for seed in range(20):
        torch.manual_seed(seed)
        image, target = DetectionDataset([annotated], True, True, True)[0]
        if not torch.equal(image, plain[0]):
            break
    assert torch.equal(image, plain[0].flip(-1))
    x1, y1, x2, y2 = map(int, target["boxes"][0])
    assert (image[1, y1:y2, x1:x2] == 250).all()
    assert target["masks"][0, y1:y2, x1:x2].all()


def test_damaged_files_are_errors(tmp_path):
    write_coco(tmp_path)
    image = tmp_path / "images/1.png"
    content = image.read_bytes()
    image.write_bytes(content[:60])
    with pytest.raises(OSError, match=re.escape(f"expected a complete image in {image} (image 11)")):
        fit(config(tmp_path))
    write_png(torch.zeros(3, 20, 30, dtype=torch.uint8), str(image))
    with pytest.raises(OSError, match=re.escape("1.png (image 11) to have the 48×48 pixels")):
        fit(config(tmp_path, workers=1))
    image.write_bytes(make_png_header(100, 100))
    with pytest.raises(
        OSError, match=re.escape("1.png (image 11) to have the 48×48 pixels that its annotations state (got")
    ):
        fit(config(tmp_path))
    image.write_bytes(make_png_header(100_000, 100_000))
    with pytest.raises(OSError, match=re.escape(f"expected a complete image in {image} (image 11)")):
        fit(config(tmp_path))
    image.write_bytes(content)
    for text in (json.dumps(build_content())[:-9], "[" * 10**5):
        (tmp_path / "instances.json").write_text(text)
        with pytest.raises(OSError, match=r"instances.json to be JSON"):
            fit(config(tmp_path))
    with pytest.raises(OSError, match="got no such folder"):
        fit(config(tmp_path / "nowhere"))


def list_norms(model):
    parts = {"backbone": model.backbone.body, "fpn": model.backbone.fpn, "head": model.roi_heads.box_head}
    if model.roi_heads.has_mask():
        parts["mask"] = model.roi_heads.mask_head
    norms = (nn.BatchNorm2d, nn.GroupNorm, GroupWhitening, FrozenBatchNorm2d)
    return {name: {type(m).__name__ for m in part.modules() if isinstance(m, norms)} for name, part in parts.items()}


def test_norms_of_each_part():
    options = SMALL | {"masks": True, "box_head": "4conv1fc"}
    model = build_detector(
        Detection(**options, norm="gw", where="s1-b2", fpn_norm="gn", head_norm="gw", mask_norm="bn"), 3
    )
    assert list_norms(model) == {
        "backbone": {"GroupWhitening", "BatchNorm2d"},
        "fpn": {"GroupNorm"},
        "head": {"GroupWhitening"},
        "mask": {"BatchNorm2d"},
    }
    model = build_detector(Detection(**options, norm="none", fpn_norm="frozen-bn", num_groups=None), 3)
    assert list_norms(model) == {"backbone": set(), "fpn": {"FrozenBatchNorm2d"}, "head": set(), "mask": set()}
    assert all(module.bias is not None for module in model.roi_heads.modules() if isinstance(module, nn.Conv2d))
    model = build_detector(Detection(**options, norm="gn", num_groups=8, fpn_norm="gn", head_norm="gw"), 3)
    assert {m.num_groups for m in model.backbone.modules() if isinstance(m, nn.GroupNorm)} == {8}
    assert {m.num_groups for m in model.roi_heads.modules() if isinstance(m, GroupWhitening)} == {16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"net": "mobilenet_v2"}, "residual network of torchvision"),
        ({"net": "resnet19"}, "did you mean"),
        ({"head_norm": "gw"}, "4conv1fc"),
        ({"mask_norm": "gw"}, "--masks"),
        ({"fpn_norm": "gx"}, "expected norm to be one of"),
        ({"freeze_at": 6}, "0 to 5"),
        ({"freeze_bn": True}, "--weights"),
        ({"dataset": "imagenet"}, "coco128"),
        ({"train_images": 9}, "the 4 images with objects"),
        ({"batch_size": 8}, "4 training examples"),
    ],
)
def test_wrong_options_are_errors(folder, options, message):
    with pytest.raises(ValueError, match=message):
        fit(config(folder, **options))


def test_weights(folder, tmp_path):
    """Of a BatchNorm network, which is converted; of the converted network; of a run; and weights that do not fit."""
    classifier = build_net("resnet18", 5, "bn", shape=(3, 32, 32))
    nn.init.uniform_(classifier.bn1.running_mean)
    torch.save(classifier.state_dict(), tmp_path / "bn.pt")
    options = {"weights": tmp_path / "bn.pt", "freeze_bn": True, "freeze_at": 2}
    task = tasks.build_task(config(folder, **options))
    source = task.build_loaders(None, lambda: 0, 0, 1)
    body = task.build_model(source.description).backbone.body
    source.close()
    assert isinstance(body.bn1, FrozenBatchNorm2d)
    assert torch.equal(body.bn1.running_mean, classifier.bn1.running_mean)
    frozen = {name.split(".")[0] for name, parameter in body.named_parameters() if not parameter.requires_grad}
    assert frozen == {"conv1", "layer1"}

    state = torch.load(tmp_path / "bn.pt")
    model = build_detector(config(folder, norm="gw", where="s1-b2"), 3, state)
    assert torch.equal(model.backbone.body.layer3[0].conv1.weight, classifier.layer3[0].conv1.weight)
    assert isinstance(model.backbone.body.bn1, GroupWhitening)

    whitened = build_net("resnet18", 5, "gw", "s1-b2", shape=(3, 32, 32))
    model = build_detector(config(folder, norm="gw", where="s1-b2"), 3, whitened.state_dict())
    assert torch.equal(model.backbone.body.bn1.weight, whitened.bn1.weight)

    RunFolder(tmp_path / "run").write_results(TrainingResult({}, {}, 0), whitened)
    assert weights.list_differences(whitened, weights.load_classifier(tmp_path / "run")) == []

    with pytest.raises(ValueError, match=r"weights of a resnet18 .*no bn1.running_mean"):
        build_detector(config(folder, weights=tmp_path / "gw.pt"), 3, whitened.state_dict())
    with pytest.raises(ValueError, match=r"and \d+ more"):
        build_detector(config(folder, net="resnet34"), 3, state)
    (tmp_path / "cut.pt").write_bytes((tmp_path / "bn.pt").read_bytes()[:5000])
    torch.save([1], tmp_path / "list.pt")
    for name, message in (("cut.pt", "cannot be read"), ("list.pt", "dict of tensors"), ("none.pt", "not there")):
        with pytest.raises(OSError, match=message):
            fit(config(folder, weights=tmp_path / name))


def test_all_columns_of_the_metric():
    """One of two objects is detected, the detected crowd does not count, and no object is small."""
    metric = AveragePrecision(masks=True)
    boxes = torch.tensor([[0.0, 0, 40, 40], [50, 50, 95, 95], [0, 50, 40, 90]])
    masks = torch.zeros(3, 100, 100, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    target = {"boxes": boxes, "labels": torch.tensor([1, 1, 1]), "masks": masks, "iscrowd": torch.tensor([0, 0, 1])}
    output = {"boxes": boxes[[0, 2]], "labels": torch.tensor([1, 1]), "scores": torch.tensor([0.8, 0.9])}
    metric.update([{**output, "masks": masks[[0, 2], None].float()}], [target])
    columns = metric.compute()
    assert set(columns) == {f"{prefix}{name}" for prefix in ("", "mask_") for name in COLUMNS}
    assert columns["ap"] == pytest.approx(50, abs=1)
    assert columns["mask_ap75"] == pytest.approx(50, abs=1)
    assert columns["ar100"] == pytest.approx(50)
    assert math.isnan(columns["ap_small"])


def test_train_and_evaluate_commands(folder, tmp_path, capsys):
    """Train with masks and a norm in every part, draw, and evaluate with the same scores."""
    options = SMALL | {"box_head": "4conv1fc", "norm": "gw", "where": "s1-b2", "fpn_norm": "gw", "head_norm": "gn"}
    options |= {"mask_norm": "gw", "bias_factor": 2.0, "epochs": 1, "dataset": f"coco:{folder}"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "quiet"]
    assert main(["train", "detection", "--masks", *flags, f"--folder={tmp_path / 'run'}"]) == 0
    assert re.search(r"test AP \d+\.\d\d %, AP50 .*, mask AP", capsys.readouterr().out)
    epoch = RunFolder(tmp_path / "run").read_result().epochs[0]
    assert set(epoch.train) == {"loss", "class", "box", "object", "proposal", "mask"}
    assert set(epoch.tests["test"]) == {f"{prefix}{name}" for prefix in ("", "mask_") for name in COLUMNS}
    assert (tmp_path / "run/detections.png").read_bytes()[:4] == b"\x89PNG"
    assert evaluate(Evaluate(tmp_path / "run"))["test"] == pytest.approx(epoch.tests["test"], nan_ok=True)


def test_resuming_gives_the_same_bits(folder, tmp_path):
    uninterrupted = fit(config(folder, test_every=9))
    with pytest.raises(InterruptedError):
        fit(config(folder, test_every=9, folder=tmp_path), callbacks=[Stop(3)])
    resumed = fit(config(folder, test_every=9, folder=tmp_path, checkpoint_epochs=9))
    assert [epoch.train for epoch in resumed.epochs] == [epoch.train for epoch in uninterrupted.epochs]
    assert resumed.epochs[-1].tests["test"] == pytest.approx(uninterrupted.epochs[-1].tests["test"], nan_ok=True)


def test_loss_falls(folder):
    options = {"epochs": 20, "lr": 0.01, "warmup_steps": 10, "clip": 5.0, "test_every": 20, "flip": False}
    outcome = fit(config(folder, **options))
    assert outcome.train_loss < 0.7 * outcome.epochs[0].train_loss


@pytest.mark.parametrize("precision", ["bf16-mixed", "64"])
def test_precision(folder, precision):
    outcome = fit(config(folder, steps=1, test_images=1, precision=precision, norm="gw"))
    assert math.isfinite(outcome.train_loss)
    assert outcome.latest("test_ap") is not None


def test_masks_without_detections():
    """The mask head runs on an empty batch if nothing is detected."""
    options = SMALL | {"masks": True, "box_head": "4conv1fc", "norm": "gw", "head_norm": "gw", "mask_norm": "gw"}
    model = build_detector(Detection(**options), 3).eval()
    model.roi_heads.score_thresh = 1.1
    output = model([torch.rand(3, SIDE, SIDE)])[0]
    assert output["masks"].shape == (0, 1, SIDE, SIDE)


def test_parameter_groups(folder):
    task = tasks.build_task(config(folder, bias_factor=2.0, freeze_at=1))
    model = build_detector(task.config, 3)
    others, biases = task.parameter_groups(model)
    assert biases["lr"] == 2 * task.config.lr
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(others["params"]) + len(biases["params"]) == len(trainable) < len(list(model.parameters()))


def test_presets():
    """The schedule of maskrcnn-benchmark: warmup from a third in 500 steps, drops at 60k and 80k."""
    preset = COMMANDS["gw-coco"]()
    rates = [
        preset.lr * compute_lr_factor(preset, step, 7329, 90_000) for step in (0, 499, 500, 59_999, 60_000, 80_000)
    ]
    assert rates == pytest.approx([0.02 / 3, 0.02, 0.02, 0.02, 0.002, 0.0002], rel=0.01)
    mask = COMMANDS["gw-coco-mask"]()
    assert (mask.lr, mask.batch_size, mask.steps, mask.net) == (0.01, 8, 180_000, "resnext101_32x8d")
    with torch.device("meta"):
        model = build_detector(replace(mask, freeze_bn=False), 81)
    assert list_norms(model) == {
        "backbone": {"GroupWhitening", "BatchNorm2d"},
        "fpn": {"GroupWhitening"},
        "head": {"GroupWhitening"},
        "mask": {"GroupWhitening"},
    }
    assert not COMMANDS["gw-coco-scratch"]().freeze_bn
    for name, preset in COMMANDS.items():
        assert name == "detection" or f"whitenorm_lab train {name}" in preset.__doc__
