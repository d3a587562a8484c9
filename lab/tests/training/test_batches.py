"""Batches of training images: order, shares of processes, augmentation, normalization, and speed."""

import time

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from whitenorm_lab import data, nets
from whitenorm_lab.tasks.classification.images import (
    PADDING,
    ImageBatches,
    TrainBatches,
    compute_normalization,
    crop_and_flip,
)
from whitenorm_lab.tasks.classification.task import Classification
from whitenorm_lab.training import Train


def test_shares_of_processes_form_the_batches_of_one():
    split = data.Split(torch.arange(50, dtype=torch.uint8).view(50, 1, 1, 1), torch.arange(50))
    alone = list(TrainBatches(split, 8, 0, True, lambda: 0))
    assert len(alone) == 6
    assert len({int(i) for batch in alone for i in batch.labels}) == 48
    shares = [list(TrainBatches(split, 8, 0, True, lambda: 0, rank, 2)) for rank in range(2)]
    for whole, *parts in zip(alone, *shares, strict=True):
        for i, part in enumerate(parts):
            assert torch.equal(whole.labels[i::2], part.labels)
            assert torch.equal(whole.draws[i::2], part.draws)
    later = list(TrainBatches(split, 8, 0, True, lambda: 8))
    second = list(TrainBatches(split, 8, 0, True, lambda: 6))
    assert [batch.labels.tolist() for batch in later] == [batch.labels.tolist() for batch in second[2:]]
    assert second[0].labels.tolist() != alone[0].labels.tolist()


@pytest.mark.parametrize("number", [1, 7, 61, 64])
def test_every_test_image_counts_once(number):
    split = data.Split(torch.zeros(number, 1, 1, 1, dtype=torch.uint8), torch.arange(number))
    shares = [list(ImageBatches(split, 8, rank, 3)) for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    seen = [int(label) for share in shares for batch in share for label in batch.labels]
    assert sorted(seen) == list(range(number))


def test_crop_and_flip_matches_single_images():
    images = torch.randn(20, 3, 9, 7)
    draws = torch.stack([torch.randint(2 * PADDING + 1, (20,)), torch.randint(9, (20,)), torch.randint(2, (20,))], 1)
    for image, (down, right, flip), actual in zip(images, draws, crop_and_flip(images, draws), strict=True):
        expected = F.pad(image, [PADDING] * 4)[:, down : down + 9, right : right + 7]
        assert torch.equal(actual, expected.flip(-1) if flip else expected)


def test_normalization():
    images = torch.randint(256, (500, 2, 3, 3), dtype=torch.uint8)
    values = images.double()
    for kind, dims in (("channel", (0, 2, 3)), ("pixel", (0,))):
        mean, scale = compute_normalization(images, kind)
        ours = (values - mean) * scale
        assert ours.mean(dims).abs().max() < 1e-5
        assert (ours.std(dims, correction=0) - 1).abs().max() < 1e-5
    mean, scale = compute_normalization(images, "pixel-mean")
    assert torch.allclose((values - mean) * scale, (values - values.mean(0)) / 255, atol=1e-6)
    assert torch.equal(compute_normalization(torch.zeros(3, 1, 1, 1), "pixel")[1], torch.zeros(1, 1, 1))


def test_batches_are_faster_than_steps():
    """Building a batch takes at most a tenth of ResNet-20's time for a step."""
    images = torch.randint(256, (1000, 3, 32, 32), dtype=torch.uint8)
    split = data.Split(images, torch.randint(10, (1000,)))
    model = nets.build("resnet20", 10)
    task = Classification(Train(augment=True))
    task.set_normalization(images)
    batches = iter(TrainBatches(split, 64, 0, True, lambda: 0))
    batch_seconds, step_seconds = [], []
    for _ in range(4):
        start = time.perf_counter()
        batch = task.prepare_batch(next(batches))
        middle = time.perf_counter()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        batch_seconds.append(middle - start)
        step_seconds.append(time.perf_counter() - middle)
    assert min(batch_seconds) < 0.1 * min(step_seconds)
