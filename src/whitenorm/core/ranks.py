"""Statistics across the ranks of a process group: one all-reduce forward, one backward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from whitenorm.core.moments import Moments

Group = dist.ProcessGroup | None


def over_ranks(local: Moments, group: Group) -> Moments:
    """The moments of all ranks' batches joined, from those of this rank's batch, each weighted by its count.

    What is added up are uncentred moments, in float64: there an offset of a thousand standard deviations, whose square
    would drown a float32 covariance, leaves ten digits. A rank may have an empty batch.
    """
    if group is None:
        return local
    mean, cov, number = local.mean.double(), local.cov.double(), local.number
    if isinstance(number, int) and number == 0:
        mean, cov = torch.zeros_like(mean), torch.zeros_like(cov)
    count = torch.as_tensor(number, dtype=mean.dtype, device=mean.device).reshape(1)
    sums = _all_reduced((count, number * mean, number * (cov + _outer(mean))), group)
    mean, second = sums[1] / sums[0], sums[2] / sums[0]
    dtype = local.mean.dtype
    return Moments(mean.to(dtype), (second - _outer(mean)).to(dtype), sums[0].squeeze().to(dtype))


def gradients_over_ranks(
    grad_mean: Tensor, grad_cov: Tensor, number: int | Tensor, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of statistics that all ranks share, added up, and the number of values they are over."""
    count = torch.as_tensor(number, dtype=grad_mean.dtype, device=grad_mean.device).reshape(1)
    grad_mean, grad_cov, count = _all_reduced((grad_mean, grad_cov, count), group)
    return grad_mean, grad_cov, count.squeeze()


def _outer(mean: Tensor) -> Tensor:
    return mean.unsqueeze(-1) * mean.unsqueeze(-2)


def _all_reduced(tensors: tuple[Tensor, ...], group: Group) -> list[Tensor]:
    """The sums over the ranks, by one collective."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
