"""The training loop of the experiments with perceptrons."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from whitenorm_lab.data import Split
from whitenorm_lab.fitting import center_images, compute_error, fit


def build_train_set(size=40):
    """Two classes of points that a line separates."""
    labels = torch.arange(size) % 2
    images = torch.randn(size, 1, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.1
    return Split(images + (2.0 * labels - 1).view(-1, 1, 1, 1), labels)


def build_linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def test_error_is_measured_on_each_batch_before_its_step():
    model, train = build_linear(), build_train_set()
    before = compute_error(model, train)
    curve = fit(model, train, lr=0.5, steps=20, points=20)
    assert curve["error"][0] == pytest.approx(before)
    assert curve["error"][-1] == 0
    assert compute_error(model, train) == 0


def test_a_point_is_the_mean_over_the_steps_since_the_last():
    fine = fit(build_linear(), build_train_set(), lr=0.1, steps=6, points=6)
    coarse = fit(build_linear(), build_train_set(), lr=0.1, steps=6, points=2)
    for name in ("loss", "error"):
        means = torch.tensor(fine[name]).view(2, 3).mean(1)
        assert coarse[name] == pytest.approx(means.tolist(), abs=1e-5)


def test_a_diverged_run_stays_infinite_and_is_not_measured():
    calls = []

    def measure(model):
        calls.append(model)
        return {"measured": 1.0}

    def diverge_at_third_call(module, args, output):
        return output / 0 if len(calls) == 2 else output

    model = build_linear()
    model.register_forward_hook(diverge_at_third_call)
    curve = fit(model, build_train_set(), lr=0.1, steps=4, points=4, measure=measure)
    for name in ("loss", "error", "measured"):
        assert [math.isfinite(value) for value in curve[name]] == [True, True, False, False]
    assert curve["step"] == [1, 2, 3, 4]
    assert len(calls) == 2


def test_the_seed_decides_the_order_of_the_images():
    batches = []

    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, images):
            batches.append(images.flatten().tolist())
            return torch.cat([images.flatten(1), self.scale.expand(len(images), 1)], 1)

    train = Split(torch.arange(10.0).view(10, 1, 1, 1), torch.zeros(10, dtype=torch.long))
    for seed in (0, 0, 1):
        fit(Recorder(), train, lr=0.0, steps=6, batch_size=3, seed=seed)
    first, again, other = batches[:6], batches[6:12], batches[12:]
    assert first == again != other
    assert len({value for batch in first[:3] for value in batch}) == 9  # one epoch, the tenth image left out


def test_center_images_subtracts_the_mean_image():
    split = Split(torch.tensor([[[[0, 255]]], [[[255, 255]]]], dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    assert torch.equal(center_images(split).images.flatten(), torch.tensor([-0.5, 0.0, 0.5, 0.0]))
    centered = center_images(split, torch.zeros(1, 1, 2))
    assert torch.equal(centered.images.flatten(), torch.tensor([0.0, 1.0, 1.0, 1.0]))
