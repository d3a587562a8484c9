"""First step: mean and covariance of each group, per sample or over the whole batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """Mean ``(B, G, K)`` and biased covariance ``(B, G, K, K)``, each over ``number`` values; B is N, or 1."""

    mean: Tensor
    cov: Tensor
    number: int


def moments(x: Tensor, pooled: bool) -> Moments:
    r"""Mean and covariance of ``x[N, G, K, L]`` over the positions, and with ``pooled`` over the samples too.

    .. math:: \mu = \frac1m \sum_i x_i, \qquad \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T

    The data are centred before the product: squares of an offset would drown the covariance in rounding errors.

    Example::

        >>> import torch
        >>> mean, cov, count = moments(torch.randn(4, 2, 3, 25), pooled=True)
        >>> mean.shape, cov.shape, count
        (torch.Size([1, 2, 3]), torch.Size([1, 2, 3, 3]), 100)
    """
    n, _, _, positions = x.shape
    mean = x.mean((0, 3) if pooled else 3, keepdim=True)
    count = n * positions if pooled else positions
    centred = x - mean
    return Moments(mean.squeeze(-1), outer(centred, centred, pooled) / count, count)


def outer(a: Tensor, b: Tensor, pooled: bool) -> Tensor:
    """The sum over positions, and with ``pooled`` over samples, of a·bᵀ: ``(N or 1, G, K, K)``."""
    product = a @ b.mT
    return product.sum(0, keepdim=True) if pooled else product
