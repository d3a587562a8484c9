"""Scores for every pixel of an image: of the whole at once, or by windows that overlap."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# How far windows are moved, as a share of their size.
_MOVE = 2 / 3


def whole(model: nn.Module, images: Tensor) -> Tensor:
    """Logarithms of the classes' probabilities, ``(N, classes, H, W)``, for images ``(N, 3, H, W)`` of any size."""
    return model(images).float().log_softmax(1)


def sliding(model: nn.Module, images: Tensor, window: int) -> Tensor:
    """The same by square windows, of which every pixel has the mean of the probabilities.

    Images that are smaller than a window get a border of zeros, the mean colour.

    Example::

        >>> sliding(nn.Conv2d(3, 5, 1), torch.randn(1, 3, 50, 20), 32).shape
        torch.Size([1, 5, 50, 20])
    """
    height, width = images.shape[-2:]
    images = F.pad(images, [0, max(0, window - width), 0, max(0, window - height)])
    total, times = torch.zeros(()), torch.zeros(images.shape[-2:], device=images.device)
    for top, left in product(*(_places(side, window) for side in images.shape[-2:])):
        rows, columns = slice(top, top + window), slice(left, left + window)
        found = model(images[..., rows, columns]).float().softmax(1)
        if not total.dim():
            total = found.new_zeros(*found.shape[:2], *images.shape[-2:])
        total[..., rows, columns] += found
        times[rows, columns] += 1
    return (total / times)[..., :height, :width].clamp_min(torch.finfo(total.dtype).tiny).log()


def _places(side: int, window: int) -> list[int]:
    """Where windows begin: at even distances, the last at the end.

    Example::

        >>> _places(50, 32), _places(32, 32)
        ([0, 18], [0])
    """
    number = 1 + -(-(side - window) // max(1, int(window * _MOVE)))
    return [round(i * (side - window) / max(1, number - 1)) for i in range(number)]
