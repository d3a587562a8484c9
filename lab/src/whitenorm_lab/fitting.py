"""Gradient descent on a set in memory: the loop of the papers' experiments with small perceptrons.

Their steps take a millisecond or less, of which a trainer for everything would be the larger part; ``whitenorm-lab
train`` is for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.data import Split

Measure = Callable[[nn.Module], dict[str, float]]


def centred(split: Split, mean: Tensor | None = None) -> Split:
    """Images in [0, 1] less a mean image, by default their own."""
    images = split.images.float().div_(255)
    return Split(images - (images.mean(0) if mean is None else mean), split.labels)


def fit(
    model: nn.Module,
    train: Split,
    *,
    lr: float,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    points: int = 50,
    measure: Measure | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, list[float]]:
    """Plain SGD on the cross entropy; returns curves of ``points`` points, more where ``measure`` adds them.

    ``step`` counts from 1; ``loss`` and ``error`` (percent) are the means over the steps since the last point, of the
    batches and in the mode of training. The whole set is the batch unless a size is given; then each pass has an order
    of its own, and what does not fill a last batch is left out. A run whose loss is not finite ends there: its further
    points are infinity.

    Example::

        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> curve = fit(model, Split(torch.randn(8, 1, 2, 2), torch.arange(8) % 2), lr=0.1, steps=4, points=2)
        >>> curve["step"], len(curve["loss"])
        ([2, 4], 2)
    """
    step = stepping(model, train, lr, batch_size, seed)
    curve: dict[str, list[float]] = {"step": [], "loss": [], "error": []}
    last = 0
    for end in ends(steps, points):
        loss = wrong = math.inf
        if not curve["loss"] or math.isfinite(curve["loss"][-1]):
            steps_since = torch.stack([step() for _ in range(last, end)])
            if steps_since.isfinite().all():
                loss, wrong = steps_since.mean(0).tolist()
        last = end
        point = {"step": end, "loss": loss, "error": 100 * wrong}
        if not math.isfinite(loss):
            point = dict.fromkeys(curve, math.inf) | point
        elif measure is not None:
            point |= measure(model)
        for name, value in point.items():
            curve.setdefault(name, []).append(value)
        progress(end / steps)
    return curve


def stepping(
    model: nn.Module, train: Split, lr: float, batch_size: int | None = None, seed: int = 0
) -> Callable[[], Tensor]:
    """A function that takes the next step; it gives the loss before it and the share of images named wrongly."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    drawn = batches(train, batch_size, seed)
    return lambda: _step(model, optimizer, next(drawn))


def ends(steps: int, points: int) -> list[int]:
    """The steps after which a curve has its points, as even as can be."""
    points = min(points, steps)
    return [round(steps * (i + 1) / points) for i in range(points)]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Split) -> Tensor:
    model.train()
    optimizer.zero_grad()
    logits = model(batch.images)
    loss = F.cross_entropy(logits, batch.labels)
    loss.backward()
    optimizer.step()
    return torch.stack([loss.detach(), (logits.argmax(1) != batch.labels).float().mean()])


def batches(train: Split, size: int | None, seed: int) -> Iterator[Split]:
    """Without end: the whole set if there is no size, otherwise full batches of passes in orders of the seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        if size is None:
            yield train
            continue
        order = torch.randperm(len(train.labels), generator=generator)
        for rows in order[: len(order) // size * size].split(size):
            yield Split(train.images[rows], train.labels[rows])


@torch.no_grad()
def error(model: nn.Module, split: Split, rows: int = 10000) -> float:
    """The share of images, in percent, whose class the model does not name, at inference; the mode stays."""
    training = model.training
    model.eval()
    wrong = sum(
        int((model(images).argmax(1) != labels).sum())
        for images, labels in zip(split.images.split(rows), split.labels.split(rows), strict=True)
    )
    model.train(training)
    return 100 * wrong / len(split.labels)
