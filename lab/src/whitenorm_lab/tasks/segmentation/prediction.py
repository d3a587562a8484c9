"""Class scores of every pixel of an image, from the whole image or from overlapping windows."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# Distance of windows, as a fraction of their size.
_STRIDE = 2 / 3


def predict_whole(model: nn.Module, images: Tensor) -> Tensor:
    """Return log-probabilities of the classes ``(N, classes, H, W)`` for images ``(N, 3, H, W)`` of any size."""
    return model(images).float().log_softmax(1)


def predict_sliding(model: nn.Module, images: Tensor, window: int) -> Tensor:
    """Return log-probabilities of the classes, averaging the probabilities of overlapping square windows.

    Images smaller than a window are padded with zeros, the mean color.

    Example::

        >>> predict_sliding(nn.Conv2d(3, 5, 1), torch.randn(1, 3, 50, 20), 32).shape
        torch.Size([1, 5, 50, 20])
    """
    height, width = images.shape[-2:]
    images = F.pad(images, [0, max(0, window - width), 0, max(0, window - height)])
    total, counts = torch.zeros(()), torch.zeros(images.shape[-2:], device=images.device)
    for top, left in product(*(_compute_offsets(side, window) for side in images.shape[-2:])):
        rows, columns = slice(top, top + window), slice(left, left + window)
        probabilities = model(images[..., rows, columns]).float().softmax(1)
        if not total.dim():
            total = probabilities.new_zeros(*probabilities.shape[:2], *images.shape[-2:])
        total[..., rows, columns] += probabilities
        counts[rows, columns] += 1
    return (total / counts)[..., :height, :width].clamp_min(torch.finfo(total.dtype).tiny).log()


def _compute_offsets(side: int, window: int) -> list[int]:
    """Return the offsets of windows along a side, evenly spaced, the last one at the end.

    Example::

        >>> _compute_offsets(50, 32), _compute_offsets(32, 32)
        ([0, 18], [0])
    """
    count = 1 + -(-(side - window) // max(1, int(window * _STRIDE)))
    return [round(i * (side - window) / max(1, count - 1)) for i in range(count)]
