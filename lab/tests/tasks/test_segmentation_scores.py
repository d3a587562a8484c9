"""Semantic segmentation: mIoU, sliding windows, and the loss."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassJaccardIndex

from lab.tests.helpers.scenes import CLASSES, TINY, write_folder
from whitenorm_lab.tasks.segmentation import datasets, prediction
from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.loaders import compute_class_weights
from whitenorm_lab.tasks.segmentation.net import build_segmenter
from whitenorm_lab.tasks.segmentation.scenes import Scene, read_scene
from whitenorm_lab.tasks.segmentation.scores import PixelScores
from whitenorm_lab.tasks.segmentation.task import Segmentation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"), 8, 3)


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
    assert list(numbers)[3:] == ["iou_sky", "iou_road", "iou_traffic_light"], "a class that never occurs is left out"
    assert sum(list(numbers.values())[3:]) / 3 == pytest.approx(numbers["miou"])


def test_sliding():
    pointwise = nn.Conv2d(3, 4, 1)
    images = torch.randn(2, 3, 50, 30)
    scores = prediction.predict_sliding(pointwise, images, 16)
    torch.testing.assert_close(scores, prediction.predict_whole(pointwise, images))
    torch.testing.assert_close(
        prediction.predict_sliding(pointwise, images, 64), prediction.predict_whole(pointwise, images)
    )
    for side in range(16, 60):
        offsets = prediction._compute_offsets(side, 16)
        assert offsets[0] == 0
        assert offsets[-1] == side - 16
        assert all(0 < after - before <= 11 for before, after in pairwise(offsets))


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
    scene_set = datasets.load(f"folder:{folder}")
    labels = torch.cat([read_scene(pair, scene_set).labels.flatten() for pair in scene_set.train])
    shares = torch.bincount(labels[labels != IGNORE]) / (labels != IGNORE).sum()
    weights = compute_class_weights(scene_set, 1.0)
    torch.testing.assert_close(weights * shares, torch.full((3,), 1 / 3))
    half = compute_class_weights(scene_set, 0.5)
    torch.testing.assert_close(half / half[0], (weights / weights[0]).sqrt())
    config = Segment(**TINY, dataset=f"folder:{folder}", balance=1.0)
    task = Segmentation(config)
    task.build_loaders(None, lambda: 0, 0, 1)
    logits, one = torch.randn(1, 3, 1, 1), torch.tensor([[[1]]], dtype=torch.uint8)
    loss = task.loss(lambda images: logits, Scene(None, one), 0, task.train_scores())
    torch.testing.assert_close(loss, -weights[1] * logits.log_softmax(1)[0, 1, 0, 0])


def test_loss_of_several_processes(monkeypatch):
    task, labels = Segmentation(Segment(**TINY)), torch.tensor([[[0, IGNORE, IGNORE]]], dtype=torch.uint8)
    logits = torch.randn(1, 3, 1, 3)
    alone = task.loss(lambda images: logits, Scene(None, labels), 0, task.train_scores())
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    # The other one has three labeled pixels.
    monkeypatch.setattr("torch.distributed.all_reduce", lambda pixels: pixels.add_(3))
    share = task.loss(lambda images: logits, Scene(None, labels), 0, task.train_scores())
    torch.testing.assert_close(share, alone / 2)


def test_groups():
    task = Segmentation(Segment(**TINY, lr=0.1, head_lr=10.0))
    model = build_segmenter("timm:resnet18", 3, "fcn", width=4)
    backbone, heads = task.parameter_groups(model)
    assert "lr" not in backbone
    assert heads["lr"] == pytest.approx(1.0)
    assert len(backbone["params"]) + len(heads["params"]) == len(list(model.parameters()))
    assert len(task.parameter_groups(nn.Conv2d(3, 3, 1))) == 1
