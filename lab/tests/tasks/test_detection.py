"""Detection: COCO's files, the norms of each part, training and its numbers, on images of a few coloured boxes."""

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

from lab.tests.helpers.coco_files import SIDE, content, square, written
from lab.tests.helpers.image_sets import png_of_size
from whitenorm import GroupWhitening
from whitenorm_lab import tasks
from whitenorm_lab.cli import main
from whitenorm_lab.nets import build as build_net
from whitenorm_lab.tasks.detection import COMMANDS, Detection, weights
from whitenorm_lab.tasks.detection.annotations import read
from whitenorm_lab.tasks.detection.metric import COLUMNS, AveragePrecision
from whitenorm_lab.tasks.detection.model import build
from whitenorm_lab.tasks.detection.pictures import Pictures, sets
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.optimization import lr_factor
from whitenorm_lab.training.result import TrainingResult
from whitenorm_lab.training.run import fit

# Images of 48 pixels, a net as narrow as a detector can be.
SMALL = {"net": "resnet18", "min_size": SIDE, "max_size": 64, "anchor_size": 8, "fpn_channels": 16, "head_width": 16}
SMALL |= {"proposals": 20, "rois": 8, "batch_size": 2, "epochs": 2, "lr": 0.005, "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return written(tmp_path_factory.mktemp("coco"))


def config(dataset, /, **options):
    return Detection(**{**SMALL, "dataset": f"coco:{dataset}", **options})


def test_annotations(folder):
    coco = read(folder / "instances.json", folder / "images")
    assert coco.names == ("background", "red", "green"), "in the order of ids"
    assert [picture.labels for picture in coco.pictures] == [[2], [1], [2], [1]]
    target = coco.pictures[1].target(masks=True)
    assert target["boxes"].tolist() == [[8, 8, 32, 28]]
    assert target["masks"].shape == (1, SIDE, SIDE)
    assert target["masks"].sum() == 24 * 20 == target["area"]


def test_crowds_and_boxes_without_area(tmp_path):
    """Training does without them, tests count them; an image that has nothing else is not trained on."""
    what = content()
    what["annotations"][0] |= {"iscrowd": 1, "segmentation": {"counts": [0, SIDE * SIDE], "size": [SIDE, SIDE]}}
    what["annotations"] += [square(200, 11, box=(5, 5, 0, 9)), square(201, 11, box=(-0.4, 30, 10, 18.7))]
    written(tmp_path, what)
    pictures = sets(config(tmp_path))[0].pictures
    assert [len(picture.learnable()) for picture in pictures] == [0, 2, 1, 1]
    assert pictures[1].boxes[2] == [0.0, 30.0, 9.6, 48.0], "cut to the image"
    target = Pictures(pictures, True, False, False)[0][1]
    assert target["iscrowd"].tolist() == [1]
    assert target["masks"].all(), "run lengths"
    task = tasks.build_task(config(tmp_path, batch_size=3))
    source = task.build_loaders(None, lambda: 0, 0, 1)
    assert len(source.train) == 1
    source.close()


def test_two_files(tmp_path):
    for split, images in (("train", 4), ("val", 2)):
        written(tmp_path / f"{split}2017", content(images))
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / f"{split}2017/instances.json").rename(tmp_path / f"annotations/instances_{split}2017.json")
        for image in (tmp_path / f"{split}2017/images").iterdir():
            image.rename(image.parent.parent / image.name)
    train, test = sets(config(tmp_path))
    assert (len(train.pictures), len(test.pictures)) == (4, 2)
    other = content(2)
    other["categories"][0]["name"] = "blue"
    (tmp_path / "annotations/instances_val2017.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="only in one of them: blue, green"):
        sets(config(tmp_path))


def test_flip(folder):
    picture = sets(config(folder))[0].pictures[0]
    (image, target), plain = (Pictures([picture], True, True, flip)[0] for flip in (True, False))
    for seed in range(20):
        torch.manual_seed(seed)
        image, target = Pictures([picture], True, True, True)[0]
        if not torch.equal(image, plain[0]):
            break
    assert torch.equal(image, plain[0].flip(-1))
    x1, y1, x2, y2 = map(int, target["boxes"][0])
    assert (image[1, y1:y2, x1:x2] == 250).all()
    assert target["masks"][0, y1:y2, x1:x2].all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda what: what["annotations"].append(square(9, 99)), "annotation 9 of .* image_id 99"),
        (
            lambda what: what["annotations"].append(square(9, 10, category=3)),
            "annotation 9 of .*category_id 3",
        ),
        (lambda what: what["annotations"].append(square(9, 10, box=(40, 8, 16, 16))), "annotation 9 .*inside .*0.png"),
        (lambda what: what["annotations"].append(square(9, 10) | {"bbox": [1, 2]}), "bbox of annotation 9"),
        (lambda what: what["annotations"].append({"id": 9}), "id, image_id, category_id, bbox"),
        (lambda what: what["images"].append(what["images"][0]), "10 twice"),
        (lambda what: what["images"][0].update(file_name="gone.png"), "gone.png, image 10 of"),
        (lambda what: what["images"][0].update(width=0), "width of image 10 of"),
        (lambda what: what.pop("categories"), "got no categories"),
        (lambda what: what["categories"].clear(), "expected categories"),
    ],
)
def test_bad_annotations(folder, tmp_path, change, words):
    what = content()
    change(what)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    with pytest.raises((ValueError, OSError), match=words) as error:
        read(file, folder / "images")
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
    ({"size": [SIDE, SIDE], "counts": "é"}, "run lengths that have no character 'é'"),
    ({"size": [SIDE, SIDE], "counts": "`"}, "run lengths that end in the middle of a number"),
]


@pytest.mark.parametrize(("outline", "words"), OUTLINES)
def test_bad_outlines(folder, tmp_path, outline, words):
    what = content()
    what["annotations"][1]["segmentation"] = outline
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    with pytest.raises(ValueError, match=words) as error:
        read(file, folder / "images")
    assert f"segmentation of annotation 101 of {file}" in str(error.value)


@pytest.mark.parametrize("outline", [None, [], "missing"])
def test_boxes_alone(folder, tmp_path, outline):
    """They train without masks; with masks, what lacks them is named."""
    what = content()
    for annotation in what["annotations"]:
        annotation["segmentation"] = outline
        if outline == "missing":
            del annotation["segmentation"]
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    picture = read(file, folder / "images").pictures[0]
    assert picture.target(masks=False)["boxes"].shape == (1, 4)
    with pytest.raises(OSError, match=r"segmentation of annotation 100 of .*0\.png .*train without masks"):
        picture.target(masks=True)


def test_run_lengths_as_pycocotools_writes_them(folder, tmp_path):
    mask = pytest.importorskip("pycocotools.mask")
    what, drawn = content(), torch.Generator().manual_seed(0)
    masks = [torch.rand(SIDE, SIDE, generator=drawn) < share for share in (0.0, 0.01, 0.5, 1.0)]
    for annotation, pixels in zip(what["annotations"], masks, strict=True):
        packed = mask.encode(np.asfortranarray(pixels.numpy().astype(np.uint8)))
        annotation["segmentation"] = {"size": packed["size"], "counts": packed["counts"].decode()}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    for picture, pixels in zip(read(file, folder / "images").pictures, masks, strict=True):
        assert torch.equal(picture.target(masks=True)["masks"][0].bool(), pixels)


WRONG = [None, True, 1.5, -0.5, "1", "", [], [1], {}, 10**400, math.nan, math.inf]
# Of each field, those that it takes.
TAKEN = {
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
KINDS = {"images": "image", "categories": "category", "annotations": "annotation"}


@pytest.mark.parametrize(("part", "name"), TAKEN)
def test_values_of_another_type(folder, tmp_path, part, name):
    """Errors, none of Python's own, name file, entry and field."""
    file = tmp_path / "instances.json"
    for value in WRONG:
        if any(value is taken or (type(value) is type(taken) and value == taken) for taken in TAKEN[part, name]):
            continue
        what = content()
        what[part][1][name] = value
        entry = f"the {KINDS[part]} at index 1" if name == "id" else f"{KINDS[part]} {what[part][1]['id']}"
        file.write_text(json.dumps(what))
        # A file of this name is not there.
        known = (ValueError, OSError) if (name, value) == ("file_name", "1") else ValueError
        with pytest.raises(known) as error:
            read(file, folder / "images")
        assert str(file) in str(error.value)
        assert known is not ValueError or f"as the {name} of {entry} of" in str(error.value), value


@pytest.mark.parametrize("part", KINDS)
def test_lists_of_something_else(folder, tmp_path, part):
    file = tmp_path / "instances.json"
    for value in (None, 3, "all", {"id": 1}):
        file.write_text(json.dumps({**content(), part: value}))
        with pytest.raises(OSError, match=f"got no {part}"):
            read(file, folder / "images")
        file.write_text(json.dumps({**content(), part: [value]}))
        with pytest.raises(
            ValueError, match=rf"expected id, .* of every {KINDS[part]} in .*instances.json \(got .* at index 0"
        ):
            read(file, folder / "images")


@pytest.mark.parametrize("name", ["../0.png", "a/../../images/0.png", "/0.png", ".", "..", "0.png\0", "absolute"])
def test_images_outside_of_their_folder(folder, tmp_path, name):
    what = content()
    what["images"][1]["file_name"] = str(folder / "images" / "0.png") if name == "absolute" else name
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    with pytest.raises(ValueError, match=r"a path inside the folder of images as the file_name of image 11 of .*json"):
        read(file, folder / "images")


def test_images_in_folders_of_their_folder(folder, tmp_path):
    what = content()
    for image in what["images"]:
        image["file_name"] = f"images/./{image['file_name']}"
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(what))
    assert [picture.file.name for picture in read(file, folder).pictures] == ["0.png", "1.png", "2.png", "3.png"]


def test_bad_files(tmp_path):
    written(tmp_path)
    image = tmp_path / "images/1.png"
    whole = image.read_bytes()
    image.write_bytes(whole[:60])
    with pytest.raises(OSError, match=re.escape(f"expected a whole image in {image} (image 11)")):
        fit(config(tmp_path))
    write_png(torch.zeros(3, 20, 30, dtype=torch.uint8), str(image))
    with pytest.raises(OSError, match=re.escape("1.png (image 11) to have the 48×48 pixels")):
        fit(config(tmp_path, workers=1))
    image.write_bytes(png_of_size(100, 100))
    with pytest.raises(
        OSError, match=re.escape("1.png (image 11) to have the 48×48 pixels that its annotations say (got")
    ):
        fit(config(tmp_path))
    image.write_bytes(png_of_size(100_000, 100_000))
    with pytest.raises(OSError, match=re.escape(f"expected a whole image in {image} (image 11)")):
        fit(config(tmp_path))
    image.write_bytes(whole)
    for text in (json.dumps(content())[:-9], "[" * 10**5):
        (tmp_path / "instances.json").write_text(text)
        with pytest.raises(OSError, match=r"instances.json to be JSON"):
            fit(config(tmp_path))
    with pytest.raises(OSError, match="got no such folder"):
        fit(config(tmp_path / "nowhere"))


def kinds(model):
    parts = {"backbone": model.backbone.body, "fpn": model.backbone.fpn, "head": model.roi_heads.box_head}
    if model.roi_heads.has_mask():
        parts["mask"] = model.roi_heads.mask_head
    norms = (nn.BatchNorm2d, nn.GroupNorm, GroupWhitening, FrozenBatchNorm2d)
    return {name: {type(m).__name__ for m in part.modules() if isinstance(m, norms)} for name, part in parts.items()}


def test_norms_of_each_part():
    options = SMALL | {"masks": True, "box_head": "4conv1fc"}
    model = build(Detection(**options, norm="gw", where="s1-b2", fpn_norm="gn", head_norm="gw", mask_norm="bn"), 3)
    assert kinds(model) == {
        "backbone": {"GroupWhitening", "BatchNorm2d"},
        "fpn": {"GroupNorm"},
        "head": {"GroupWhitening"},
        "mask": {"BatchNorm2d"},
    }
    model = build(Detection(**options, norm="none", fpn_norm="frozen-bn", num_groups=None), 3)
    assert kinds(model) == {"backbone": set(), "fpn": {"FrozenBatchNorm2d"}, "head": set(), "mask": set()}
    assert all(module.bias is not None for module in model.roi_heads.modules() if isinstance(module, nn.Conv2d))
    model = build(Detection(**options, norm="gn", num_groups=8, fpn_norm="gn", head_norm="gw"), 3)
    assert {m.num_groups for m in model.backbone.modules() if isinstance(m, nn.GroupNorm)} == {8}
    assert {m.num_groups for m in model.roi_heads.modules() if isinstance(m, GroupWhitening)} == {16}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"net": "mobilenet_v2"}, "residual net of torchvision"),
        ({"net": "resnet19"}, "did you mean"),
        ({"head_norm": "gw"}, "4conv1fc"),
        ({"mask_norm": "gw"}, "--masks"),
        ({"fpn_norm": "gx"}, "expected norm to be one of"),
        ({"freeze_at": 6}, "0 to 5"),
        ({"freeze_bn": True}, "--weights"),
        ({"dataset": "imagenet"}, "coco128"),
        ({"train_images": 9}, "4 of"),
        ({"batch_size": 8}, "4 training examples"),
    ],
)
def test_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        fit(config(folder, **options))


def test_weights(folder, tmp_path):
    """Of BatchNorm, which is converted; of the norm itself; of a run's folder; of neither."""
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
    fixed = {name.split(".")[0] for name, parameter in body.named_parameters() if not parameter.requires_grad}
    assert fixed == {"conv1", "layer1"}

    state = torch.load(tmp_path / "bn.pt")
    model = build(config(folder, norm="gw", where="s1-b2"), 3, state)
    assert torch.equal(model.backbone.body.layer3[0].conv1.weight, classifier.layer3[0].conv1.weight)
    assert isinstance(model.backbone.body.bn1, GroupWhitening)

    whitened = build_net("resnet18", 5, "gw", "s1-b2", shape=(3, 32, 32))
    model = build(config(folder, norm="gw", where="s1-b2"), 3, whitened.state_dict())
    assert torch.equal(model.backbone.body.bn1.weight, whitened.bn1.weight)

    RunFolder(tmp_path / "run").write_results(TrainingResult({}, {}, 0), whitened)
    assert weights.differences(whitened, weights.state_of(tmp_path / "run")) == []

    with pytest.raises(ValueError, match=r"weights of a resnet18 .*no bn1.running_mean"):
        build(config(folder, weights=tmp_path / "gw.pt"), 3, whitened.state_dict())
    with pytest.raises(ValueError, match=r"and \d+ more"):
        build(config(folder, net="resnet34"), 3, state)
    (tmp_path / "cut.pt").write_bytes((tmp_path / "bn.pt").read_bytes()[:5000])
    torch.save([1], tmp_path / "list.pt")
    for name, words in (("cut.pt", "cannot be read"), ("list.pt", "dict of tensors"), ("none.pt", "not there")):
        with pytest.raises(OSError, match=words):
            fit(config(folder, weights=tmp_path / name))


def test_all_columns():
    """What pycocotools would say: half of two boxes found, a crowd that costs nothing, no small object."""
    metric = AveragePrecision(masks=True)
    boxes = torch.tensor([[0.0, 0, 40, 40], [50, 50, 95, 95], [0, 50, 40, 90]])
    masks = torch.zeros(3, 100, 100, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    there = {"boxes": boxes, "labels": torch.tensor([1, 1, 1]), "masks": masks, "iscrowd": torch.tensor([0, 0, 1])}
    found = {"boxes": boxes[[0, 2]], "labels": torch.tensor([1, 1]), "scores": torch.tensor([0.8, 0.9])}
    metric.add([{**found, "masks": masks[[0, 2], None].float()}], [there])
    columns = metric.compute()
    assert set(columns) == {f"{prefix}{name}" for prefix in ("", "mask_") for name in COLUMNS}
    assert columns["ap"] == pytest.approx(50, abs=1)
    assert columns["mask_ap75"] == pytest.approx(50, abs=1)
    assert columns["ar100"] == pytest.approx(50)
    assert math.isnan(columns["ap_small"])


def test_command(folder, tmp_path, capsys):
    """Masks and a norm in every part: trained, drawn, and tested again with the same numbers."""
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


def test_resumes_with_the_same_bits(folder, tmp_path):
    class Stop(Callback):
        def on_train_batch_start(self, trainer, module, batch, i):
            if trainer.global_step == 3:
                raise InterruptedError("stopped here")

    whole = fit(config(folder, test_every=9))
    with pytest.raises(InterruptedError):
        fit(config(folder, test_every=9, folder=tmp_path), callbacks=[Stop()])
    parts = fit(config(folder, test_every=9, folder=tmp_path, checkpoint_epochs=9))
    assert [epoch.train for epoch in parts.epochs] == [epoch.train for epoch in whole.epochs]
    assert parts.epochs[-1].tests["test"] == pytest.approx(whole.epochs[-1].tests["test"], nan_ok=True)


def test_learns(folder):
    options = {"epochs": 20, "lr": 0.01, "warmup_steps": 10, "clip": 5.0, "test_every": 20, "flip": False}
    outcome = fit(config(folder, **options))
    assert outcome.train_loss < 0.7 * outcome.epochs[0].train_loss


@pytest.mark.parametrize("precision", ["bf16-mixed", "64"])
def test_precision(folder, precision):
    outcome = fit(config(folder, steps=1, test_images=1, precision=precision, norm="gw"))
    assert math.isfinite(outcome.train_loss)
    assert outcome.latest("test_ap") is not None


def test_nothing_is_found():
    """A mask head of no boxes, as in an image where nothing is found."""
    options = SMALL | {"masks": True, "box_head": "4conv1fc", "norm": "gw", "head_norm": "gw", "mask_norm": "gw"}
    model = build(Detection(**options), 3).eval()
    model.roi_heads.score_thresh = 1.1
    found = model([torch.rand(3, SIDE, SIDE)])[0]
    assert found["masks"].shape == (0, 1, SIDE, SIDE)


def test_groups(folder):
    task = tasks.build_task(config(folder, bias_factor=2.0, freeze_at=1))
    model = build(task.config, 3)
    others, biases = task.parameter_groups(model)
    assert biases["lr"] == 2 * task.config.lr
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(others["params"]) + len(biases["params"]) == len(trained) < len(list(model.parameters()))


def test_presets():
    """The codebase's schedule: up from a third in 500 steps, down at 60k and 80k."""
    preset = COMMANDS["gw-coco"]()
    rates = [preset.lr * lr_factor(preset, step, 7329, 90_000) for step in (0, 499, 500, 59_999, 60_000, 80_000)]
    assert rates == pytest.approx([0.02 / 3, 0.02, 0.02, 0.02, 0.002, 0.0002], rel=0.01)
    mask = COMMANDS["gw-coco-mask"]()
    assert (mask.lr, mask.batch_size, mask.steps, mask.net) == (0.01, 8, 180_000, "resnext101_32x8d")
    with torch.device("meta"):
        model = build(replace(mask, freeze_bn=False), 81)
    assert kinds(model) == {
        "backbone": {"GroupWhitening", "BatchNorm2d"},
        "fpn": {"GroupWhitening"},
        "head": {"GroupWhitening"},
        "mask": {"GroupWhitening"},
    }
    assert not COMMANDS["gw-coco-scratch"]().freeze_bn
    for name, kind in COMMANDS.items():
        assert name == "detection" or f"whitenorm-lab train {name}" in kind.__doc__
