"""Messages between ranks: triangles of symmetric matrices, packed into one tensor per collective."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from whitenorm._runtime import is_transformed
from whitenorm.ops.types import AffineGrad, Moments


def pack_moments(local: Moments) -> Tensor:
    """Return the number of values, and the sums of x and x·xᵀ; see :class:`MessageKernels`."""
    mean, cov, number = local.mean.double(), local.cov.double(), local.num_values
    if isinstance(number, int) and number == 0:
        mean, cov = torch.zeros_like(mean), torch.zeros_like(cov)
    second = _upper(torch.addcmul(cov, mean.unsqueeze(-1), mean.unsqueeze(-2)))
    message = torch.cat([mean.new_ones(1), mean.flatten(), second.flatten()])
    return message if isinstance(number, int) and number == 1 else message * number


def unpack_moments(message: Tensor, local: Moments) -> Moments:
    """Return the moments of a message summed over the ranks."""
    mean, cov = local.mean, local.cov
    count, total, second = message.split([1, mean.numel(), message.numel() - 1 - mean.numel()])
    number = count.clamp(min=1)
    total, second = (total / number).view(mean.shape), (second / number).view(*mean.shape[:-1], -1)
    second = _from_upper(second, cov.shape[-1])
    second = torch.addcmul(second, total.unsqueeze(-1), total.unsqueeze(-2), value=-1)
    return Moments(total.to(mean.dtype), second.to(mean.dtype), count.squeeze().to(mean.dtype))


def pack_gradient(local: AffineGrad) -> Tensor:
    """Return the gradients of the covariance and of the mean, and the number of values."""
    matrix, offset, _, number = local
    return torch.cat([_upper(matrix).flatten(), offset.flatten(), _count(number, offset)])


def unpack_gradient(message: Tensor, local: AffineGrad) -> AffineGrad:
    """Return the gradient of a message summed over the ranks."""
    matrix, offset, mean, _ = local
    upper, total, count = message.split([message.numel() - offset.numel() - 1, offset.numel(), 1])
    upper = _from_upper(upper.view(*offset.shape[:-1], -1), matrix.shape[-1])
    return AffineGrad(upper, total.view(offset.shape), mean, count.squeeze().clamp(min=1))


def _upper(matrix: Tensor) -> Tensor:
    """Return the upper triangle of symmetric matrices, which is all that is sent, as ``(..., K(K + 1)/2)``."""
    return matrix.flatten(-2)[..., _triangle(matrix.shape[-1], matrix.device)[0]]


def _from_upper(triangle: Tensor, size: int) -> Tensor:
    return triangle[..., _triangle(size, triangle.device)[1]]


def _triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the indices of an upper triangle among K·K entries, and of all entries in the triangle.

    Compiled code has its own constants, so that the cache is for eager mode.
    """
    return _index_triangle(size, device) if is_transformed() else _cached_triangle(size, device)


def _index_triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row, column = torch.triu_indices(size, size, device=device)
    place = torch.empty(size, size, dtype=torch.long, device=device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=device)
    return row * size + column, place


_cached_triangle = functools.cache(_index_triangle)


def _count(number: int | Tensor, like: Tensor) -> Tensor:
    """Return a number as a tensor ``(1,)``, made by a fill, because a copy from the host would wait for the device."""
    return number.reshape(1).to(like.dtype) if isinstance(number, Tensor) else like.new_full((1,), number)
