"""Statistics across the ranks of a process group: one all-reduce forward, one backward."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from whitenorm.kernels.types import Linear, Moments
from whitenorm.runtime.mode import is_transformed

Group = dist.ProcessGroup | None


def over_ranks(local: Moments, group: Group) -> Moments:
    """The moments of all ranks' batches joined, from those of this rank's batch, each weighted by its count.

    What is added up are uncentred moments, in float64: there an offset of a thousand standard deviations, whose square
    would drown a float32 covariance, leaves ten digits. A rank may have an empty batch; where all have, mean,
    covariance and number are zero.
    """
    if group is None:
        return local
    mean, cov, number = local.mean.double(), local.cov.double(), local.number
    if isinstance(number, int) and number == 0:
        mean, cov = torch.zeros_like(mean), torch.zeros_like(cov)
    second = _upper(torch.addcmul(cov, mean.unsqueeze(-1), mean.unsqueeze(-2)))
    count, total, upper = _all_reduced((mean.new_ones(1), mean, second), group, number)
    number = count.clamp(min=1)
    mean, upper = total / number, upper / number
    cov = torch.addcmul(_from_upper(upper, cov.shape[-1]), mean.unsqueeze(-1), mean.unsqueeze(-2), value=-1)
    dtype = local.mean.dtype
    return Moments(mean.to(dtype), cov.to(dtype), count.squeeze().to(dtype))


def gradient_over_ranks(local: Linear | None, group: Group) -> Linear | None:
    """What the statistics that all ranks share add to dx, added up over the ranks, and over 1 value at least."""
    if local is None or group is None:
        return local
    matrix, offset, mean, number = local
    upper, offset, count = _all_reduced((_upper(matrix), offset, _count(number, offset)), group)
    return Linear(_from_upper(upper, matrix.shape[-1]), offset, mean, count.squeeze().clamp(min=1))


def _upper(matrix: Tensor) -> Tensor:
    """The upper triangle of symmetric matrices, which is all there is to send, as ``(..., K(K + 1)/2)``."""
    return matrix.flatten(-2)[..., _triangle(matrix.shape[-1], matrix.device)[0]]


def _from_upper(triangle: Tensor, size: int) -> Tensor:
    return triangle[..., _triangle(size, triangle.device)[1]]


def _triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the entries of an upper triangle are among K·K, and where those of the matrix are in the triangle.

    What a compiler traces has constants of its own.
    """
    return _places(size, device) if is_transformed() else _kept_places(size, device)


def _places(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row, column = torch.triu_indices(size, size, device=device)
    place = torch.empty(size, size, dtype=torch.long, device=device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=device)
    return row * size + column, place


_kept_places = functools.cache(_places)


def _count(number: int | Tensor, like: Tensor) -> Tensor:
    """A number as a tensor ``(1,)``, filled in where it is used: a copy from the host would wait for the device."""
    return number.reshape(1).to(like.dtype) if isinstance(number, Tensor) else like.new_full((1,), number)


def in_step(batches: Iterable[Any], groups: dict[dist.ProcessGroup, torch.device]) -> Iterator[Any]:
    """The batches, as long as all ranks of the groups have one; an error on all of them where some do not.

    Otherwise those that have would wait in a collective for those that have not. Of each group, the device is given
    that its collectives run on. One small collective a batch and group, with a host sync.
    """
    iterator: Iterator[Any] | None = None
    count = 0
    while True:
        batch, state = None, 1
        try:
            iterator = iter(batches) if iterator is None else iterator
            batch, state = next(iterator), 0
        except StopIteration:
            pass
        except Exception:
            _numbers_of_ranks(2, groups)
            raise
        going, ended, failed = _numbers_of_ranks(state, groups)
        if failed:
            raise RuntimeError(f"expected batch {count + 1} on all ranks (got an error on {failed} of them; see there)")
        if going and ended:
            raise ValueError(
                f"expected the same number of batches on all ranks (got {count} on {ended} of them, and more on {going}"
                "); give the same number to all, some of them empty if need be, x[:0]"
            )
        if ended:
            return
        yield batch
        count += 1


def _numbers_of_ranks(state: int, groups: dict[dist.ProcessGroup, torch.device]) -> list[int]:
    """How many ranks are in each of three states, in the group where these are most; alone, this one."""
    numbers = [int(i == state) for i in range(3)]
    for group, device in groups.items():
        flags = torch.zeros(3, dtype=torch.long, device=device)
        flags[state] = 1
        dist.all_reduce(flags, group=group)
        numbers = [max(a, b) for a, b in zip(numbers, flags.tolist(), strict=True)]
    return numbers


def _all_reduced(tensors: tuple[Tensor, ...], group: Group, number: int | Tensor = 1) -> list[Tensor]:
    """The sums over the ranks, each rank's counted ``number`` times, by one collective."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    flat = flat if isinstance(number, int) and number == 1 else flat * number
    dist.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
