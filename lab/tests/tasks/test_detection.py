"""Detection: COCO's files, the norms of each part, training and scores, on small images of coloured squares."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torchvision.io import write_png
from torchvision.ops import FrozenBatchNorm2d

from lab.tests.helpers.coco_files import SIDE, build_content, build_square, write_coco
from lab.tests.helpers.image_sets import make_png_header
from whitenorm import GroupWhitening
from whitenorm_lab import tasks
from whitenorm_lab.cli import main
from whitenorm_lab.nets import build as build_net
from whitenorm_lab.tasks.detection import COMMANDS, Detection, weights
from whitenorm_lab.tasks.detection.annotations import read_annotations
from whitenorm_lab.tasks.detection.dataset import DetectionDataset, read_datasets
from whitenorm_lab.tasks.detection.metric import COLUMNS, AveragePrecision
from whitenorm_lab.tasks.detection.model import build_detector
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.optimization import lr_factor
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


def test_read_annotations(folder):
    coco = read_annotations(folder / "instances.json", folder / "images")
    assert coco.names == ("background", "red", "green"), "in the order of ids"
    assert [image.labels for image in coco.images] == [[2], [1], [2], [1]]
    target = coco.images[1].target(masks=True)
    assert target["boxes"].tolist() == [[8, 8, 32, 28]]
    assert target["masks"].shape == (1, SIDE, SIDE)
    assert target["masks"].sum() == 24 * 20 == target["area"]


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["annotations"].append(build_square(9, 99)), "annotation 9 of .* image_id 99"),
        (
            lambda content: content["annotations"].append(build_square(9, 10, category=3)),
            "annotation 9 of .*category_id 3",
        ),
        (
            lambda content: content["annotations"].append(build_square(9, 10, box=(40, 8, 16, 16))),
            "annotation 9 .*inside .*0.png",
        ),
        (lambda content: content["annotations"].append(build_square(9, 10) | {"bbox": [1, 2]}), "bbox of annotation 9"),
        (lambda content: content["annotations"].append({"id": 9}), "id, image_id, category_id, bbox"),
        (lambda content: content["images"].append(content["images"][0]), "10 twice"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "gone.png, image 10 of"),
        (lambda content: content["images"][0].update(width=0), "width of image 10 of"),
        (lambda content: content.pop("categories"), "got no categories"),
        (lambda content: content["categories"].clear(), "expected categories"),
    ],
)
def test_damaged_annotations_are_errors(folder, tmp_path, change, message):
    content = build_content()
    change(content)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises((ValueError, OSError), match=message) as error:
        read_annotations(file, folder / "images")
    assert str(file) in str(error.value)


OUTLINES = [
    ([[1, 2]], "expected polygons of x and y, or run lengths as the segmentation"),
    ([[0, 0, 9, 9]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 9, 1]], "expected polygons"),
    ([[0, 0, 9, 0, 9, math.nan]], "expected polygons"),
    ([[0, 0, 9, 0, 9, "9"]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 10**400]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 9], None], "expected polygons"),
    ("a polygon", "expected polygons"),
    ({}, "expected polygons"),
    ({"size": [SIDE, SIDE], "counts": [0.5]}, "expected polygons"),
    ({"size": SIDE, "counts": [SIDE * SIDE]}, "expected polygons"),
    ([[0, 0, 9, 0, 1e9, 9]], r"polygons from 0 to 1000000000.0 and from 0 to 9, outside of 48×48 pixels"),
    ([[0, 0, 9, 0, 9, -3]], r"and from -3 to 0, outside"),
    ({"size": [SIDE, 20], "counts": [SIDE * SIDE]}, r"of size \[48, 20\] for an image of \[48, 48\]"),
    ({"size": [SIDE, SIDE], "counts": []}, "run lengths of 0 pixels for an image of 48×48"),
    ({"size": [SIDE, SIDE], "counts": [SIDE * SIDE - 1]}, "run lengths of 2303 pixels"),
    ({"size": [SIDE, SIDE], "counts": [-1, SIDE * SIDE + 1]}, "run lengths of 2304 pixels"),
    ({"size": [SIDE, SIDE], "counts": ""}, "run lengths of 0 pixels"),
    ({"size": [SIDE, SIDE], "counts": "5"}, "run lengths of 5 pixels"),
    ({"size": [SIDE, SIDE], "counts": "é"}, "run lengths that contain the invalid character 'é'"),
    ({"size": [SIDE, SIDE], "counts": "`"}, "run lengths that end in the middle of a number"),
]


@pytest.mark.parametrize(("outline", "message"), OUTLINES)
def test_damaged_outlines_are_errors(folder, tmp_path, outline, message):
    content = build_content()
    content["annotations"][1]["segmentation"] = outline
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        read_annotations(file, folder / "images")
    assert f"segmentation of annotation 101 of {file}" in str(error.value)


@pytest.mark.parametrize("outline", [None, [], "missing"])
def test_boxes_without_masks(folder, tmp_path, outline):
    """They train without masks; a request for masks raises an error that names the annotation."""
    content = build_content()
    for annotation in content["annotations"]:
        annotation["segmentation"] = outline
        if outline == "missing":
            del annotation["segmentation"]
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    image = read_annotations(file, folder / "images").images[0]
    assert image.target(masks=False)["boxes"].shape == (1, 4)
    with pytest.raises(OSError, match=r"segmentation of annotation 100 of .*0\.png .*train without masks"):
        image.target(masks=True)


def test_compressed_run_lengths(folder, tmp_path):
    mask = pytest.importorskip("pycocotools.mask")
    content, generator = build_content(), torch.Generator().manual_seed(0)
    masks = [torch.rand(SIDE, SIDE, generator=generator) < share for share in (0.0, 0.01, 0.5, 1.0)]
    for annotation, pixels in zip(content["annotations"], masks, strict=True):
        runs = mask.encode(np.asfortranarray(pixels.numpy().astype(np.uint8)))
        annotation["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode()}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    for image, pixels in zip(read_annotations(file, folder / "images").images, masks, strict=True):
        assert torch.equal(image.target(masks=True)["masks"][0].bool(), pixels)


WRONG = [None, True, 1.5, -0.5, "1", "", [], [1], {}, 10**400, math.nan, math.inf]
# The values of WRONG that each field accepts.
ACCEPTED = {
    ("images", "id"): [],
    ("images", "file_name"): [],
    ("images", "width"): [],
    ("images", "height"): [],
    ("categories", "id"): [],
    ("categories", "name"): ["1", ""],
    ("annotations", "id"): [],
    ("annotations", "image_id"): [],
    ("annotations", "category_id"): [],
    ("annotations", "bbox"): [],
    ("annotations", "area"): [1.5],
    ("annotations", "iscrowd"): [True],
    ("annotations", "segmentation"): [None, []],
}
SINGULAR = {"images": "image", "categories": "category", "annotations": "annotation"}


@pytest.mark.parametrize(("part", "name"), ACCEPTED)
def test_wrong_values_are_errors(folder, tmp_path, part, name):
    """The errors name file, entry and field; none is a KeyError or TypeError."""
    file = tmp_path / "instances.json"
    for value in WRONG:
        if any(
            value is accepted or (type(value) is type(accepted) and value == accepted)
            for accepted in ACCEPTED[part, name]
        ):
            continue
        content = build_content()
        content[part][1][name] = value
        entry = f"the {SINGULAR[part]} at index 1" if name == "id" else f"{SINGULAR[part]} {content[part][1]['id']}"
        file.write_text(json.dumps(content))
        # There is no file of this name.
        errors = (ValueError, OSError) if (name, value) == ("file_name", "1") else ValueError
        with pytest.raises(errors) as error:
            read_annotations(file, folder / "images")
        assert str(file) in str(error.value)
        assert errors is not ValueError or f"as the {name} of {entry} of" in str(error.value), value


@pytest.mark.parametrize("part", SINGULAR)
def test_wrong_lists_are_errors(folder, tmp_path, part):
    file = tmp_path / "instances.json"
    for value in (None, 3, "all", {"id": 1}):
        file.write_text(json.dumps({**build_content(), part: value}))
        with pytest.raises(OSError, match=f"got no {part}"):
            read_annotations(file, folder / "images")
        file.write_text(json.dumps({**build_content(), part: [value]}))
        with pytest.raises(
            ValueError, match=rf"expected id, .* of every {SINGULAR[part]} in .*instances.json \(got .* at index 0"
        ):
            read_annotations(file, folder / "images")


@pytest.mark.parametrize("name", ["../0.png", "a/../../images/0.png", "/0.png", ".", "..", "0.png\0", "absolute"])
def test_images_outside_of_their_folder_are_errors(folder, tmp_path, name):
    content = build_content()
    content["images"][1]["file_name"] = str(folder / "images" / "0.png") if name == "absolute" else name
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"a path inside the folder of images as the file_name of image 11 of .*json"):
        read_annotations(file, folder / "images")


def test_images_in_subfolders(folder, tmp_path):
    content = build_content()
    for image in content["images"]:
        image["file_name"] = f"images/./{image['file_name']}"
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    assert [image.file.name for image in read_annotations(file, folder).images] == [
        "0.png",
        "1.png",
        "2.png",
        "3.png",
    ]


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
    class Stop(Callback):
        def on_train_batch_start(self, trainer, module, batch, i):
            if trainer.global_step == 3:
                raise InterruptedError("stopped here")

    uninterrupted = fit(config(folder, test_every=9))
    with pytest.raises(InterruptedError):
        fit(config(folder, test_every=9, folder=tmp_path), callbacks=[Stop()])
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
    rates = [preset.lr * lr_factor(preset, step, 7329, 90_000) for step in (0, 499, 500, 59_999, 60_000, 80_000)]
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
