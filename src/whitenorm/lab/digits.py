"""A small real image set that ships with the package: handwritten digits of 8×8 pixels (see ``assets/NOTICE.md``)."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

TRAIN_IMAGES = 1297

_PIXELS = 64


class Split(NamedTuple):
    """Images ``(N, 1, 8, 8)``, standardised as a whole, and labels ``(N,)``."""

    images: Tensor
    labels: Tensor


def load() -> tuple[Split, Split]:
    """Training and test images; the test images are the last 500, from writers mostly unseen in training.

    Example::

        >>> train, test = load()
        >>> train.images.shape, test.labels.shape
        (torch.Size([1297, 1, 8, 8]), torch.Size([500]))
    """
    packed = resources.files("whitenorm.lab").joinpath("assets/digits.bin.gz").read_bytes()
    rows = torch.frombuffer(bytearray(gzip.decompress(packed)), dtype=torch.uint8).view(-1, _PIXELS + 1)
    images = rows[:, :_PIXELS].float().view(-1, 1, 8, 8)
    labels = rows[:, _PIXELS].long()
    images = (images - images[:TRAIN_IMAGES].mean()) / images[:TRAIN_IMAGES].std()
    train = Split(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES])
    return train, Split(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])
