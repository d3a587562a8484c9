"""Semantic segmentation: nets, readers, what is done to images, scores, and whole runs on tiny folders."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import timm
import torch
from image_sets import scene, write_scenes
from lightning.pytorch import Callback
from PIL import Image
from torch import nn
from torchmetrics.classification import MulticlassJaccardIndex

import whitenorm
from whitenorm.cli import main
from whitenorm.lab.tasks import segmentation
from whitenorm.lab.tasks.segmentation import net, predicting, reading, sets
from whitenorm.lab.tasks.segmentation.backbones import backbone
from whitenorm.lab.tasks.segmentation.classes import IGNORE
from whitenorm.lab.tasks.segmentation.config import Segment, SwAde20k
from whitenorm.lab.tasks.segmentation.scenes import Augment, Centre, Scene, collate, read
from whitenorm.lab.tasks.segmentation.scores import PixelScores
from whitenorm.lab.tasks.segmentation.task import SHEET, Segmentation
from whitenorm.lab.training import fit, load
from whitenorm.lab.training.evaluation import Evaluate, evaluate

CLASSES = ("sky", "road", "traffic light")
NET = {"net": "timm:resnet18", "width": 4}
TINY = {**NET, "head": "fcn", "crop": 32, "batch_size": 4, "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes")
    write_scenes(path, {"train": 8, "val": 3}, len(CLASSES))
    (path / "classes.txt").write_text("\n".join(CLASSES))
    return path


@pytest.fixture
def copied(folder, tmp_path):
    """A folder that may be damaged."""
    write_scenes(tmp_path, {"train": 4, "val": 2}, len(CLASSES))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    return tmp_path


def whitened(model):
    return [name for name, module in model.named_modules() if isinstance(module, whitenorm.SwitchableWhitening)]


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
    found = whitened(model)
    assert len(found) == number
    assert found[0] == "backbone.bn1"
    assert all(name.startswith("backbone.layer") and name.endswith(".bn2") for name in found[1:])
    assert not any(name.startswith("backbone.layer4") for name in found)


def test_places_in_a_mobile_net():
    model = net.build("timm:tf_efficientnet_lite0", 5, norm="sw", where="sw-14", stride=32)
    widths = [model.get_submodule(name).num_features for name in whitened(model)]
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


def trained_file(path, **changes):
    state = timm.create_model("resnet18", channels=(4, 8, 16, 32), num_classes=7).state_dict()
    state = {name: torch.randn_like(value) if value.is_floating_point() else value for name, value in state.items()}
    state |= {name: value for name, value in changes.items() if value is not None}
    torch.save({name: value for name, value in state.items() if name not in changes or changes[name] is not None}, path)
    return state


def test_weights_from_a_file(tmp_path):
    state = trained_file(tmp_path / "trained.pt")
    model = net.build("timm:resnet18", 5, width=4, weights=str(tmp_path / "trained.pt"))
    own = model.backbone.state_dict()
    assert own
    assert all(torch.equal(value, state[name]) for name, value in own.items())
    model = net.build("timm:resnet18", 5, "psp", "sw", "l1", width=4, weights=str(tmp_path / "trained.pt"))
    first = model.get_submodule(whitened(model)[0])
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
    trained_file(tmp_path / "trained.pt", **changes)
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


def test_folder(folder):
    found = sets.load(f"folder:{folder}")
    assert [category.name for category in found.categories] == list(CLASSES)
    assert len(found.train) == 8
    assert {name: len(pairs) for name, pairs in found.tests.items()} == {"test": 3}
    image, labels = read(found.train[0], found)
    expected, classes = scene(len(CLASSES), (36, 48), [len("train"), 0])
    assert torch.equal(image, torch.from_numpy(expected).permute(2, 0, 1))
    assert torch.equal(labels, torch.from_numpy(classes))


def test_camvid(tmp_path):
    write_scenes(tmp_path / "camvid", {"train": 2, "val": 1, "test": 1}, 11, void=11)
    found = sets.load("camvid", tmp_path)
    assert {name: len(pairs) for name, pairs in found.tests.items()} == {"test": 1, "validation": 1}
    labels = read(found.train[0], found).labels
    assert (labels[0] == IGNORE).all()
    assert labels[1:-1, 1:-1].max() < 11


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def test_ade20k(tmp_path):
    root = tmp_path / "ADEChallengeData2016"
    for split in ("training", "validation"):
        save(root / "images" / split / "a.jpg", np.zeros((2, 2, 3)))
        save(root / "annotations" / split / "a.png", [[0, 1], [2, 150]])
    found = sets.load("ade20k", tmp_path)
    assert len(found.categories) == 150
    assert read(found.train[0], found).labels.tolist() == [[IGNORE, 0], [1, 149]]
    rows = "\n".join(f"{i}\t0.1\t1\t1\tthing {i}, matter" for i in range(1, 151))
    (root / "objectInfo150.txt").write_text(f"Idx\tRatio\tTrain\tVal\tName\n{rows}\n")
    assert sets.load("ade20k", tmp_path).categories[1].name == "2 thing 2"
    (root / "objectInfo150.txt").write_text("Idx\n1\tsky\n")
    with pytest.raises(OSError, match=r"objectInfo150.txt .got 1 classes"):
        sets.load("ade20k", tmp_path)


def test_cityscapes(tmp_path):
    root = tmp_path / "cityscapes"
    for split in ("train", "val"):
        save(root / "leftImg8bit" / split / "ulm" / "ulm_0_leftImg8bit.png", np.zeros((2, 2, 3)))
        save(root / "gtFine" / split / "ulm" / "ulm_0_gtFine_labelIds.png", [[7, 8], [0, 33]])
    found = sets.load("cityscapes", tmp_path)
    assert len(found.categories) == 19
    assert read(found.train[0], found).labels.tolist() == [[0, 1], [IGNORE, 18]]
    (root / "gtFine/val/ulm/ulm_0_gtFine_labelIds.png").unlink()
    with pytest.raises(OSError, match=r"needs .*ulm_0_gtFine_labelIds.png"):
        sets.load("cityscapes", tmp_path)


def test_missing_sets(tmp_path, monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    with pytest.raises(OSError, match="camvid needs a data root"):
        sets.load("camvid")
    with pytest.raises(OSError, match=r"camvid is not in .* 367, 101 and 233"):
        sets.load("camvid", tmp_path)
    with pytest.raises(ValueError, match="did you mean camvid"):
        sets.load("camvit", tmp_path)
    with pytest.raises(OSError, match=r"classes.txt with the name of a class a line"):
        sets.load(f"folder:{tmp_path}")
    (tmp_path / "classes.txt").write_text("sky\nsky\n")
    with pytest.raises(OSError, match=r"different names in .*classes.txt"):
        sets.load(f"folder:{tmp_path}")
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    with pytest.raises(OSError, match=r"images in .*train .got none"):
        sets.load(f"folder:{tmp_path}")


def damaged(pixels):
    def damage(path):
        save(path, pixels)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damaged(np.full((36, 48), 255)), "nothing but void in .*train_labels/000.png"),
        (damaged(np.zeros((36, 40))), "size, 48×36 .got 40×36 in .*train_labels/000.png"),
        (damaged(np.full((36, 48), 3)), "3 classes of folder:.* .got also 3 in .*train_labels/000.png"),
        (damaged(np.zeros((36, 48, 3))), "one byte a pixel in .*train_labels/000.png .got an image of mode RGB"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "whole image in .*train_labels/000.png"),
        (lambda path: path.write_bytes(b"no image"), "whole image in .*train_labels/000.png"),
    ],
)
def test_bad_label_maps(copied, damage, words):
    damage(copied / "train_labels" / "000.png")
    found = sets.load(f"folder:{copied}")
    with pytest.raises(OSError, match=words):
        read(found.train[0], found)


def test_bad_files_end_a_run(copied):
    config = Segment(**TINY, dataset=f"folder:{copied}", epochs=1)
    (copied / "train" / "002.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"whole image in .*train/002.png"):
        fit(config)
    (copied / "train_labels" / "001.png").unlink()
    with pytest.raises(OSError, match=r"label map for every image .got none for 1 of 4: .*001.png needs .*001.png"):
        fit(config)


def test_augmentation_moves_labels_with_the_image():
    labels = torch.randint(0, 200, (40, 50), dtype=torch.uint8)
    image = labels.expand(3, 40, 50)
    augment = Augment(32, (1, 2, 3), (1.0, 1.0), flip=True)
    found = {True: 0, False: 0}
    for seed in range(20):
        torch.manual_seed(seed)
        cut = augment(Scene(image, labels))
        assert cut.labels.shape == (32, 32)
        assert torch.equal(cut.image[0], cut.labels)
        windows = labels.unfold(0, 32, 1).unfold(1, 32, 1)
        flipped = not (windows == cut.labels).flatten(2).all(2).any()
        assert (windows == cut.labels.flip(-1)).flatten(2).all(2).any() or not flipped
        found[flipped] += 1
    assert min(found.values()) > 3, "some are flipped and some are not"


def test_augmentation_scales():
    image, labels = (torch.from_numpy(part) for part in scene(3, (60, 60), 0))
    whole = Scene(image.permute(2, 0, 1), labels)
    small = Augment(60, (9, 8, 7), (0.5, 0.5), flip=False)(whole)
    assert (small.labels[30:] == IGNORE).all()
    assert (small.labels[:30, 30:] == IGNORE).all()
    assert small.image[:, 40, 40].tolist() == [9, 8, 7]
    # Fields of 12 pixels have 6, and their middle is theirs.
    assert torch.equal(small.labels[3:30:6, 3:30:6], labels[6::12, 6::12])
    large = Augment(120, (9, 8, 7), (2.0, 2.0), flip=False)(whole)
    assert torch.equal(large.labels[12::24, 12::24], labels[6::12, 6::12])


def test_centre():
    labels = torch.arange(25, dtype=torch.uint8).view(5, 5)
    cut = Centre(3, (0, 0, 0))(Scene(labels.expand(3, 5, 5), labels))
    assert torch.equal(cut.labels, labels[1:4, 1:4])


def source_of(folder, step=0, rank=0, world=1, **options):
    config = Segment(**{**TINY, **options}, dataset=f"folder:{folder}")
    return Segmentation(config).source(None, lambda: step, rank, world)


def test_batches_follow_from_the_step(folder):
    steps = 2
    batches = list(source_of(folder).train)
    assert len(batches) == steps
    again = list(source_of(folder, step=1).train)
    assert len(again) == 1
    assert torch.equal(again[0][0], batches[1][0])
    later = list(source_of(folder, step=steps).train)
    assert not torch.equal(later[0][0], batches[0][0])
    shares = [list(source_of(folder, rank=rank, world=2).train) for rank in range(2)]
    assert torch.equal(shares[0][0].image, batches[0].image[::2])
    assert torch.equal(shares[1][1].labels, batches[1].labels[1::2])


def test_tests_are_whole_and_once(folder):
    source = source_of(folder, test_batch=2)
    sizes = [tuple(batch.labels.shape) for batch in source.tests["test"]]
    assert sizes == [(2, 36, 48), (1, 36, 48)]
    assert sum(len(batch.labels) for batch in source_of(folder, test_images=2).tests["test"]) == 2
    assert [tuple(batch.labels.shape) for batch in source.calibration(6)] == [(3, 32, 32), (3, 32, 32)]
    with pytest.raises(ValueError, match="leave --validate out"):
        source_of(folder, validate=True)
    with pytest.raises(ValueError, match="up to the 8 there are"):
        source_of(folder, train_images=9)
    assert len(source_of(folder, train_images=4).train) == 1


def test_collate():
    small, large = (Scene(torch.zeros(3, side, side), torch.zeros(side, side)) for side in (2, 3))
    with pytest.raises(ValueError, match="--test-batch 1"):
        collate([small, large])
    assert len(collate([]).labels) == 0


def test_scores():
    generator = torch.Generator().manual_seed(0)
    scores = PixelScores([*CLASSES, "never"])
    jaccard = MulticlassJaccardIndex(4, ignore_index=IGNORE)
    right = pixels = 0
    for _ in range(3):
        logits = torch.randn(2, 4, 5, 6, generator=generator)
        logits[:, 3] = -9.0
        labels = torch.randint(0, 3, (2, 5, 6), generator=generator)
        labels[:, 0] = IGNORE
        scores.update(logits, labels.to(torch.uint8), torch.tensor(0.25))
        jaccard.update(logits, labels)
        right += int((logits.argmax(1) == labels).sum())
        pixels += int((labels != IGNORE).sum())
    numbers = scores.compute()
    assert numbers["loss"] == 0.25
    assert numbers["miou"] == pytest.approx(float(jaccard.compute()))
    assert numbers["accuracy"] == right / pixels
    assert list(numbers)[3:] == ["iou_sky", "iou_road", "iou_traffic_light"], "the class that never is, is left out"
    assert sum(list(numbers.values())[3:]) / 3 == pytest.approx(numbers["miou"])


def test_sliding():
    pointwise = nn.Conv2d(3, 4, 1)
    images = torch.randn(2, 3, 50, 30)
    found = predicting.sliding(pointwise, images, 16)
    torch.testing.assert_close(found, predicting.whole(pointwise, images))
    torch.testing.assert_close(predicting.sliding(pointwise, images, 64), predicting.whole(pointwise, images))
    for side in range(16, 60):
        places = predicting._places(side, 16)
        assert places[0] == 0
        assert places[-1] == side - 16
        assert all(0 < later - place <= 11 for place, later in pairwise(places))


def test_loss_leaves_void_out():
    task = Segmentation(Segment(**TINY, auxiliary=0.5))
    labels = torch.tensor([[[0, IGNORE], [1, 2]]], dtype=torch.uint8)
    logits = torch.randn(2, 1, 3, 2, 2)
    scores = task.train_scores()
    loss = task.loss(lambda images: (logits[0], logits[1]), Scene(None, labels), 0, scores)
    pixels = [(0, 0, 0), (1, 0, 1), (1, 1, 2)]
    expected = [-torch.stack([one.log_softmax(1)[0, c, i, j] for i, j, c in pixels]).mean() for one in logits]
    torch.testing.assert_close(loss, expected[0] + 0.5 * expected[1])
    assert scores.compute()["loss"] == pytest.approx(loss.item())
    nothing = task.loss(lambda images: logits[0], Scene(None, torch.full_like(labels, IGNORE)), 0, task.train_scores())
    assert nothing == 0


def test_class_weights(folder):
    found = sets.load(f"folder:{folder}")
    labels = torch.cat([read(pair, found).labels.flatten() for pair in found.train])
    shares = torch.bincount(labels[labels != IGNORE]) / (labels != IGNORE).sum()
    weights = reading.class_weights(found, 1.0)
    torch.testing.assert_close(weights * shares, torch.full((3,), 1 / 3))
    half = reading.class_weights(found, 0.5)
    torch.testing.assert_close(half / half[0], (weights / weights[0]).sqrt())
    config = Segment(**TINY, dataset=f"folder:{folder}", balance=1.0)
    task = Segmentation(config)
    task.source(None, lambda: 0, 0, 1)
    logits, one = torch.randn(1, 3, 1, 1), torch.tensor([[[1]]], dtype=torch.uint8)
    loss = task.loss(lambda images: logits, Scene(None, one), 0, task.train_scores())
    torch.testing.assert_close(loss, -weights[1] * logits.log_softmax(1)[0, 1, 0, 0])


def test_loss_of_several_processes(monkeypatch):
    task, labels = Segmentation(Segment(**TINY)), torch.tensor([[[0, IGNORE, IGNORE]]], dtype=torch.uint8)
    logits = torch.randn(1, 3, 1, 3)
    alone = task.loss(lambda images: logits, Scene(None, labels), 0, task.train_scores())
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    # The other one has three labelled pixels.
    monkeypatch.setattr("torch.distributed.all_reduce", lambda pixels: pixels.add_(3))
    share = task.loss(lambda images: logits, Scene(None, labels), 0, task.train_scores())
    torch.testing.assert_close(share, alone / 2)


def test_groups():
    task = Segmentation(Segment(**TINY, lr=0.1, head_lr=10.0))
    model = net.build("timm:resnet18", 3, "fcn", width=4)
    backbone, heads = task.groups(model)
    assert "lr" not in backbone
    assert heads["lr"] == pytest.approx(1.0)
    assert len(backbone["params"]) + len(heads["params"]) == len(list(model.parameters()))
    assert len(task.groups(nn.Conv2d(3, 3, 1))) == 1


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = Segment(**TINY, norm="sw", where="l1", dataset=f"folder:{folder}", epochs=2, test="sliding", folder=path)
    return path, fit(config)


def test_run(run):
    path, outcome = run
    assert {"miou", "accuracy", "loss", "iou_sky"} <= set(outcome.epochs[-1].tests["test"])
    assert 0 <= outcome.number("test_miou") <= 1
    picture = np.asarray(Image.open(path / SHEET).convert("RGB"))
    assert picture.std() > 20
    assert len(whitened(load(path))) == 1
    assert evaluate(Evaluate(path))["test"] == outcome.epochs[-1].tests["test"]


def test_evaluate_takes_several_images_at_once(run):
    path, _ = run
    assert Segment(batch_size=16).at_once(2) == Segment(batch_size=16, test_batch=2)
    one, two = (evaluate(Evaluate(path, batch_size=number))["test"] for number in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)


def test_learns(folder):
    """Classes that are colours are told apart; by chance it would be 0.2."""
    options = {**TINY, "auxiliary": 0.0, "scales": (1.0, 1.0), "epochs": 15, "lr": 0.1, "test_every": 15}
    outcome = fit(Segment(**options, dataset=f"folder:{folder}"))
    assert outcome.number("test_miou") > 0.45
    assert outcome.epochs[-1].train_loss < 0.7 * outcome.epochs[0].train_loss


def test_begins_from_weights_that_may_then_go(folder, tmp_path):
    trained_file(tmp_path / "trained.pt")
    config = Segment(
        **TINY, dataset=f"folder:{folder}", epochs=1, steps=1, lr=0.0, weights=str(tmp_path / "trained.pt")
    )
    with torch.no_grad():
        fit(replace(config, folder=tmp_path / "run", weight_decay=0.0))
    kept = torch.load(tmp_path / "trained.pt")["conv1.weight"]
    (tmp_path / "trained.pt").unlink()
    assert torch.equal(load(tmp_path / "run").backbone.state_dict()["conv1.weight"], kept)


class Stop(Callback):
    def on_train_batch_start(self, trainer, module, batch, i):
        if trainer.global_step == 3:
            raise InterruptedError("stopped here")


def test_resumes_with_the_same_bits(folder, tmp_path):
    config = Segment(
        **TINY, norm="sw", where="l1", dataset=f"folder:{folder}", epochs=2, test_every=2, checkpoint_steps=1
    )
    straight = fit(config)
    config = replace(config, folder=tmp_path / "run")
    with pytest.raises(InterruptedError):
        fit(config, callbacks=[Stop()])
    resumed = fit(config)
    assert resumed.epochs[-1].numbers() == straight.epochs[-1].numbers()


def test_other_models_are_checked(folder):
    config = Segment(**TINY, dataset=f"folder:{folder}", epochs=1)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 64, 64\) in eval mode .got \(2, 5, 64, 64\)"):
        fit(config, model=nn.Conv2d(3, 5, 1))
    assert fit(config, model=nn.Conv2d(3, 3, 1)).number("test_miou") >= 0


def test_presets():
    assert list(segmentation.COMMANDS) == ["segmentation", "sw-ade20k", "sw-cityscapes"]
    assert SwAde20k.from_dict(SwAde20k().to_dict()) == SwAde20k()
    with pytest.raises(ValueError, match="rising order"):
        Segment(scales=(2.0, 1.0))
    with pytest.raises(ValueError, match="crop to be at least 1"):
        Segment(crop=0)


def test_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "--net timm:resnet18 --width 4 --crop 32 --batch-size 4 --workers 0 --epochs 1 --head fcn"
    main(["train", "segmentation", "--dataset", f"folder:{folder}", *options.split()])
    said = capsys.readouterr().out
    assert "mIoU" in said
    assert list((tmp_path / "runs").glob("*/predictions.png"))
