"""Batches of images in memory, and what is done with them on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from whitenorm_lab.data import Split
from whitenorm_lab.training.batches import (
    StepBatches,
    TestBatches,
    check_batch_size,
    seeded_generator,
    shuffle_into_batches,
    split_in_order,
)

PADDING = 4


class Batch(NamedTuple):
    """Images as bytes ``(N, C, H, W)``, labels ``(N,)``, and how to augment: down, right and flipped, or None."""

    images: Tensor
    labels: Tensor
    draws: Tensor | None = None


class TrainBatches(StepBatches):
    """The training batches of the epoch that the step count is in, from that step on.

    What does not fill a last batch is left out: every step sees as many images. Of several processes, each takes its
    share of every batch, so that together they see what one process would.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        augment: bool,
        step: Callable[[], int],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(step)
        self.batch_size = check_batch_size(batch_size, len(split.labels), world)
        self.split, self.seed, self.augment = split, seed, augment
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.split.labels) // self.batch_size

    def order(self, epoch: int) -> list[Tensor]:
        return shuffle_into_batches(torch.arange(len(self.split.labels)), self.batch_size, self.seed, epoch)

    def batch(self, epoch: int, i: int, part: Tensor) -> Batch:
        # Drawn for the whole batch, of which each process has its rows.
        draws = self._draws(epoch, i)[self.rank :: self.world] if self.augment else None
        rows = part[self.rank :: self.world]
        whole = len(rows) == len(self.split.labels)
        images, labels = self.split if whole else (self.split.images[rows], self.split.labels[rows])
        return Batch(images, labels, draws)

    def _draws(self, epoch: int, i: int) -> Tensor:
        limits = torch.tensor([2 * PADDING + 1, 2 * PADDING + 1, 2])
        return (torch.rand(self.batch_size, 3, generator=seeded_generator(self.seed, epoch, i)) * limits).long()


class ImageBatches(TestBatches):
    """All images in order, once, in batches of even sizes. Every process has as many batches as the others."""

    def __init__(self, split: Split, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.split = split
        super().__init__(split_in_order(torch.arange(len(split.labels)), batch_size, rank, world), self._rows)

    def _rows(self, rows: Tensor) -> Batch:
        return Batch(self.split.images[rows], self.split.labels[rows])


def crop_and_flip(images: Tensor, draws: Tensor) -> Tensor:
    """Each image shifted by up to the padding, zeros moving in, and flipped or not: the whole batch in one gather.

    Args:
        images: ``(N, C, H, W)``.
        draws: ``(N, 3)``: rows and columns from 0 to twice the padding, and 0 or 1.

    Example::

        >>> image = torch.arange(4.0).view(1, 1, 2, 2)
        >>> crop_and_flip(image, torch.tensor([[4, 4, 1]]))
        tensor([[[[1., 0.],
                  [3., 2.]]]])
    """
    number, _, height, width = images.shape
    # Every place of the window, as a view.
    windows = F.pad(images, [PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
    down, right, flip = draws.unbind(1)
    crops = windows[torch.arange(number, device=images.device), :, down, right]
    return torch.where(flip.bool().view(-1, 1, 1, 1), crops.flip(-1), crops)


def resized(images: Tensor, size: int) -> Tensor:
    """Images scaled to so many pixels a side, smoothed where they become smaller.

    Example::

        >>> resized(torch.randn(2, 3, 32, 32), 96).shape
        torch.Size([2, 3, 96, 96])
    """
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=size < images.shape[-1])


def mixing(alpha: float, *key: int, number: int) -> tuple[float, Tensor]:
    """Of mixup, for a key: a share of Beta(α, α), and which image each of so many is mixed with.

    Example::

        >>> share, order = mixing(0.2, 0, 1, number=3)
        >>> 0 <= share <= 1, sorted(order.tolist())
        (True, [0, 1, 2])
    """
    drawn = seeded_generator(*key, "mixup")
    # torch's own draw of a Beta distribution takes no generator.
    share = np.random.default_rng(drawn.initial_seed()).beta(alpha, alpha)
    return float(share), torch.randperm(number, generator=drawn)


def normalisation(images: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Mean and factor, of ``(C, 1, 1)`` or ``(C, H, W)``, that images as bytes are normalised with.

    Example::

        >>> mean, factor = normalisation(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2), "channel")
        >>> mean.item(), 1 / factor.item()
        (127.5, 127.49999...)
    """
    if kind == "none":
        return torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1 / 255)
    if kind == "half":
        return torch.full((1, 1, 1), 127.5), torch.full((1, 1, 1), 1 / 127.5)
    total = torch.zeros(images.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in images.split(4096):
        part = part.double()
        total, squares = total + part.sum(0), squares + part.square().sum(0)
    mean, square = total / len(images), squares / len(images)
    if kind == "channel":
        mean, square = (value.mean((1, 2), keepdim=True) for value in (mean, square))
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    # A pixel that is the same in all images stays 0.
    factor = torch.where(deviation > 0, 1 / deviation, 0.0) if kind != "pixel-mean" else torch.full_like(mean, 1 / 255)
    return mean.float(), factor.float()
