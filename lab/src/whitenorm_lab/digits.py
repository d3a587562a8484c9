"""Handwritten digits of 8×8 pixels, a small data set that ships with the package (see ``assets/NOTICE.md``)."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

TRAIN_IMAGES = 1297

_PIXELS = 64


class Split(NamedTuple):
    """Images ``(N, C, H, W)`` and labels ``(N,)``."""

    images: Tensor
    labels: Tensor


def load_pixels() -> tuple[Split, Split]:
    """Return training and test images as bytes from 0 to 240.

    The last 500 images are the test set, mostly by writers who are not in the training set.
    """
    packed = resources.files("whitenorm_lab").joinpath("assets/digits.bin.gz").read_bytes()
    rows = torch.frombuffer(bytearray(gzip.decompress(packed)), dtype=torch.uint8).view(-1, _PIXELS + 1)
    # The data set has 17 grey levels, 0 to 16.
    images = (15 * rows[:, :_PIXELS]).reshape(-1, 1, 8, 8)
    labels = rows[:, _PIXELS].long()
    return Split(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]), Split(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])


def load() -> tuple[Split, Split]:
    """Return training and test images, standardized by one mean and deviation over all pixels.

    Example::

        >>> train, test = load()
        >>> train.images.shape, test.labels.shape
        (torch.Size([1297, 1, 8, 8]), torch.Size([500]))
    """
    train, test = load_pixels()
    mean, std = train.images.float().mean(), train.images.float().std()
    train, test = (Split((split.images.float() - mean) / std, split.labels) for split in (train, test))
    return train, test
