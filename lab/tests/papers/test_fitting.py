"""The loop of the experiments with perceptrons."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from whitenorm_lab.data import Split
from whitenorm_lab.fitting import centred, error, fit


def points(number=40):
    """Two classes of points that a line divides."""
    labels = torch.arange(number) % 2
    images = torch.randn(number, 1, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.1
    return Split(images + (2.0 * labels - 1).view(-1, 1, 1, 1), labels)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def test_the_error_is_that_of_the_batches_before_each_step():
    model, train = linear(), points()
    before = error(model, train)
    curve = fit(model, train, lr=0.5, steps=20, points=20)
    assert curve["error"][0] == pytest.approx(before)
    assert curve["error"][-1] == 0
    assert error(model, train) == 0


def test_a_point_is_the_mean_of_the_steps_since_the_last():
    fine = fit(linear(), points(), lr=0.1, steps=6, points=6)
    coarse = fit(linear(), points(), lr=0.1, steps=6, points=2)
    for name in ("loss", "error"):
        means = torch.tensor(fine[name]).view(2, 3).mean(1)
        assert coarse[name] == pytest.approx(means.tolist(), abs=1e-5)


def test_what_diverged_stays_infinite_and_is_not_measured():
    measured = []

    def measure(model):
        measured.append(model)
        return {"measured": 1.0}

    def burst(module, args, output):
        # The third forward pass has no finite value.
        return output / 0 if len(measured) == 2 else output

    model = linear()
    model.register_forward_hook(burst)
    curve = fit(model, points(), lr=0.1, steps=4, points=4, measure=measure)
    for name in ("loss", "error", "measured"):
        assert [math.isfinite(value) for value in curve[name]] == [True, True, False, False]
    assert curve["step"] == [1, 2, 3, 4]
    assert len(measured) == 2


def test_batches_go_through_the_set_in_an_order_of_the_seed():
    seen = []

    class Look(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, images):
            seen.append(images.flatten().tolist())
            return torch.cat([images.flatten(1), self.scale.expand(len(images), 1)], 1)

    train = Split(torch.arange(10.0).view(10, 1, 1, 1), torch.zeros(10, dtype=torch.long))
    for seed in (0, 0, 1):
        fit(Look(), train, lr=0.0, steps=6, batch_size=3, seed=seed)
    first, again, other = seen[:6], seen[6:12], seen[12:]
    assert first == again != other
    assert len({value for batch in first[:3] for value in batch}) == 9  # one pass, the tenth left out


def test_centred_is_less_the_given_mean():
    split = Split(torch.tensor([[[[0, 255]]], [[[255, 255]]]], dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    assert torch.equal(centred(split).images.flatten(), torch.tensor([-0.5, 0.0, 0.5, 0.0]))
    assert torch.equal(centred(split, torch.zeros(1, 1, 2)).images.flatten(), torch.tensor([0.0, 1.0, 1.0, 1.0]))
