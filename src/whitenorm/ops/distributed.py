"""Sums and statistics over the ranks of a process group, and ranks in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from whitenorm._runtime import apply_function
from whitenorm.ops.torch import messages as torch_messages
from whitenorm.ops.types import AffineGrad, MessageKernels, Moments

Group = dist.ProcessGroup | None
T = TypeVar("T")


class GroupHandle:
    """Holder of a process group, which belongs to its process: deep copies share it, pickles leave it out."""

    def __init__(self, group: Group = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupHandle:
        return self

    def __reduce__(self) -> tuple[type[GroupHandle], tuple[()]]:
        return GroupHandle, ()


def sum_over_ranks(x: Tensor, group: Group) -> Tensor:
    """Return the sum of a tensor over the ranks of a group, differentiable any number of times.

    Call it on all ranks with tensors of one shape; its backward is a sum over ranks as well, so that the gradients are
    those of the sum of all ranks' losses. Without a group, x itself is returned.

    Example::

        >>> sum_over_ranks(torch.ones(2), None)
        tensor([1., 1.])
    """
    if group is None:
        return x
    total: Tensor = apply_function(_SumOverRanks, x, group)
    return total


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, group: Group) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return sum_over_ranks(grad, ctx.group), None


def world_size(group: Group) -> int:
    """Return the number of ranks of a group; 1 without one."""
    return 1 if group is None else dist.get_world_size(group)


def gather_rows(x: Tensor, group: Group) -> tuple[Tensor, slice]:
    """Return the rows ``(V, N, D)`` of all ranks, which have the same number, and the place of this rank's.

    Differentiable, because it is a sum in which every rank fills its own rows.

    Example::

        >>> rows, mine = gather_rows(torch.ones(2, 3, 4), None)
        >>> rows[:, mine].shape
        torch.Size([2, 3, 4])
    """
    size = x.shape[1]
    if group is None:
        return x, slice(0, size)
    start = dist.get_rank(group) * size
    end = world_size(group) * size - start - size
    padded = torch.nn.functional.pad(x, (0, 0, start, end))
    return sum_over_ranks(padded, group), slice(start, start + size)


def reduce_moments(local: Moments, group: Group, messages: MessageKernels = torch_messages) -> Moments:
    """Return the moments over the batches of all ranks, from those of this rank's batch.

    Uncentred moments, weighted by their counts, are summed in float64: the square of an offset of a thousand standard
    deviations, which would drown a float32 covariance, leaves ten digits there. A rank may have an empty batch; if all
    are empty, mean, covariance and number of values are zero.
    """
    if group is None:
        return local
    message = messages.pack_moments(local)
    dist.all_reduce(message, group=group)
    return messages.unpack_moments(message, local)


def reduce_gradient(
    local: AffineGrad | None, group: Group, messages: MessageKernels = torch_messages
) -> AffineGrad | None:
    """Return the gradient through shared statistics, summed over the ranks and divided by the values of all ranks."""
    if local is None or group is None:
        return local
    message = messages.pack_gradient(local)
    dist.all_reduce(message, group=group)
    return messages.unpack_gradient(message, local)


# The reports of a rank: at a batch or a collective, out of batches, failed to read a batch, failed to process one.
_GOING, _ENDED, _UNREAD, _FAILED = range(4)


class Lockstep:
    """Keep ranks together while each runs code of its own, which may fail on some of them.

    The ranks report to each other at every batch, and wherever :meth:`check` stands, before a collective. Where one has
    failed, all raise; otherwise they would wait in a collective for it. A report is a small collective per group, with
    a host sync.

    Args:
        groups: the process groups of this rank, each with the device that its collectives run on.
    """

    def __init__(self, groups: dict[dist.ProcessGroup, torch.device]) -> None:
        self._groups = groups
        # The groups whose ranks all know of a failure.
        self._informed: set[dist.ProcessGroup] = set()
        self._count = 0

    def iterate(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches as long as all ranks have one; raise on all ranks where some do not."""
        iterator: Iterator[T] | None = None
        while True:
            state = _GOING
            try:
                iterator = iter(batches) if iterator is None else iterator
                batch = next(iterator)
            except StopIteration:
                state = _ENDED
            except BaseException:
                self._report(_UNREAD)
                raise
            states = self._exchange(state, self._groups)
            self._raise_failure(states)
            self._check_numbers(states)
            if state == _ENDED:
                return
            self._count += 1
            yield batch

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Report an error within the context to the other ranks before it is raised."""
        try:
            yield
        except BaseException:
            self._report(_FAILED)
            raise

    def check(self, group: Group) -> None:
        """Raise if a rank of the group has failed. Call it on all ranks before a collective that may be left out."""
        if group is not None:
            self._raise_failure(self._exchange(_GOING, [group]))

    def _exchange(self, state: int, groups: Iterable[dist.ProcessGroup]) -> dict[int, int]:
        """Return the state of every rank of the groups, by its global rank."""
        reports = []
        for group in groups:
            flags = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=self._groups[group])
            flags[dist.get_rank(group)] = state
            # To all groups at once: their ranks may be waiting for each other.
            reports.append((group, flags, dist.all_reduce(flags, group=group, async_op=True)))
        states = {dist.get_rank() if self._groups else 0: state}
        for group, flags, work in reports:
            work.wait()
            reported = dict(zip(dist.get_process_group_ranks(group), flags.tolist(), strict=True))
            if max(reported.values()) >= _UNREAD:
                self._informed.add(group)
            states |= {rank: max(other, states.get(rank, 0)) for rank, other in reported.items()}
        return states

    def _report(self, state: int) -> None:
        """Report a failure of this rank, or one reported to it, to the groups that do not know of it yet."""
        # A broken process group raises here as well; the error that is being raised says why.
        with suppress(RuntimeError):
            self._exchange(state, [group for group in self._groups if group not in self._informed])

    def _raise_failure(self, states: dict[int, int]) -> None:
        failed = [rank for rank, state in states.items() if state >= _UNREAD]
        if not failed:
            return
        unread = any(state == _UNREAD for state in states.values())
        task = f"read batch {self._count + 1}" if unread else f"process batch {self._count}"
        ranks = f"rank {failed[0]}" if len(failed) == 1 else f"ranks {sorted(failed)}"
        raise RuntimeError(f"expected all ranks to {task} (got an error on {ranks}); see the traceback there")

    def _check_numbers(self, states: dict[int, int]) -> None:
        ended = sum(state == _ENDED for state in states.values())
        going = len(states) - ended
        if going and ended:
            raise ValueError(
                f"expected the same number of batches on all ranks (got {self._count} on {ended} of them, and more on "
                f"{going}); give the same number to all, some of them empty if need be, x[:0]"
            )
