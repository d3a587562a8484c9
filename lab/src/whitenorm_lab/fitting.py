"""Plain SGD on a data set in memory, for the papers' experiments with small perceptrons.

One step takes a millisecond or less, so a full trainer would cost more than the training itself. Larger models are
trained by ``whitenorm-lab train``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.data import Split

Measure = Callable[[nn.Module], dict[str, float]]


def center_images(split: Split, mean: Tensor | None = None) -> Split:
    """Scale images to [0, 1] and subtract a mean image, by default that of the split."""
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
    """Train with plain SGD on the cross entropy and return curves of ``points`` points.

    The curves are ``step`` (counted from 1), ``loss`` and ``error`` (percent of wrong labels). Loss and error are means
    over the training batches since the previous point, in training mode. A run stops when its loss is not finite; its
    remaining points are infinite.

    Args:
        model: trained in place.
        train: the training set.
        lr: learning rate.
        steps: number of SGD steps.
        batch_size: images per batch; by default the whole set. Each epoch has a new order, and drops the last batch if
            it is incomplete.
        seed: of the order of the images.
        points: number of points per curve, at most ``steps``.
        measure: called with the model at every point; the values it returns are added as further curves.
        progress: called with the share of the steps that are done.

    Example::

        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> curve = fit(model, Split(torch.randn(8, 1, 2, 2), torch.arange(8) % 2), lr=0.1, steps=4, points=2)
        >>> curve["step"], len(curve["loss"])
        ([2, 4], 2)
    """
    take_step = make_step(model, train, lr, batch_size, seed)
    curves: dict[str, list[float]] = {"step": [], "loss": [], "error": []}
    previous = 0
    for end in logging_steps(steps, points):
        loss = wrong = math.inf
        if not curves["loss"] or math.isfinite(curves["loss"][-1]):
            losses_and_errors = torch.stack([take_step() for _ in range(previous, end)])
            if losses_and_errors.isfinite().all():
                loss, wrong = losses_and_errors.mean(0).tolist()
        previous = end
        point = {"step": end, "loss": loss, "error": 100 * wrong}
        if not math.isfinite(loss):
            point = dict.fromkeys(curves, math.inf) | point
        elif measure is not None:
            point |= measure(model)
        for name, value in point.items():
            curves.setdefault(name, []).append(value)
        progress(end / steps)
    return curves


def make_step(
    model: nn.Module, train: Split, lr: float, batch_size: int | None = None, seed: int = 0
) -> Callable[[], Tensor]:
    """Return a function that takes one SGD step and returns the loss and the error rate before it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batches = iterate_batches(train, batch_size, seed)

    def take_step() -> Tensor:
        batch = next(batches)
        model.train()
        optimizer.zero_grad()
        logits = model(batch.images)
        loss = F.cross_entropy(logits, batch.labels)
        loss.backward()
        optimizer.step()
        return torch.stack([loss.detach(), (logits.argmax(1) != batch.labels).float().mean()])

    return take_step


def logging_steps(steps: int, points: int) -> list[int]:
    """Return the steps after which a curve has a point, evenly spaced up to the last step."""
    points = min(points, steps)
    return [round(steps * (i + 1) / points) for i in range(points)]


def iterate_batches(train: Split, size: int | None, seed: int) -> Iterator[Split]:
    """Yield full batches in a new random order every epoch, without end; the whole set if ``size`` is None."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        if size is None:
            yield train
            continue
        order = torch.randperm(len(train.labels), generator=generator)
        for rows in order[: len(order) // size * size].split(size):
            yield Split(train.images[rows], train.labels[rows])


@torch.no_grad()
def compute_error(model: nn.Module, split: Split, batch_size: int = 10000) -> float:
    """Return the percentage of wrong labels in eval mode; the model's mode is restored."""
    training = model.training
    model.eval()
    wrong = sum(
        int((model(images).argmax(1) != labels).sum())
        for images, labels in zip(split.images.split(batch_size), split.labels.split(batch_size), strict=True)
    )
    model.train(training)
    return 100 * wrong / len(split.labels)
