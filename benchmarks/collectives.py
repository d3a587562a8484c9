"""Predict the time that statistics synchronized over ranks add to a training step, by a simple model of an all-reduce.

A collective takes the time of its start, of two hops per level of a tree (within a machine and between machines), and
of its bytes, of which each GPU sends and receives 2(n - 1)/n times, over the slowest link. The collectives of the
statistics are not hidden, because the next operation waits for them. That of the gradient overlaps with backward.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks import resnet
from benchmarks.resnet import Norm
from benchmarks.roofline.cards import Card
from benchmarks.roofline.prediction import gpu_seconds
from benchmarks.roofline.work import Operation, layer_work

CARDS_PER_MACHINE = 8
RANKS = (8, 64, 256, 1024)
# Seconds for the start of a collective, for a hop within a machine, and for a hop between machines.
START, HOP_WITHIN, HOP_BETWEEN = 10e-6, 2e-6, 5e-6
# Attained bytes per second and GPU: NVLink in an A100 machine, and a network of 200 Gbit/s per GPU.
LINK_WITHIN, LINK_BETWEEN = 230e9, 20e9


def all_reduce_seconds(message: int, ranks: int) -> float:
    """Return the seconds of an all-reduce of a number of bytes.

    Example::

        >>> round(all_reduce_seconds(0, 8) * 1e6), round(all_reduce_seconds(0, 1024) * 1e6)
        (22, 92)
    """
    within, machines = min(ranks, CARDS_PER_MACHINE), math.ceil(ranks / CARDS_PER_MACHINE)
    hops = 2 * (math.ceil(math.log2(within)) * HOP_WITHIN + math.ceil(math.log2(machines)) * HOP_BETWEEN)
    link = LINK_WITHIN if machines == 1 else LINK_BETWEEN
    return START + hops + 2 * (ranks - 1) / ranks * message / link


def message_bytes(operations: Iterable[Operation]) -> list[int]:
    """Return the bytes of each all-reduce among the operations, half of those that it reads and writes."""
    return [operation.bytes // 2 for operation in operations if operation.name == "allreduce_"]


def count_synchronized(norms: list[Norm], kernels: str) -> list[tuple[Operation, ...]]:
    """Return the operations of each norm with statistics synchronized over ranks."""
    work: dict[Hashable, tuple[Operation, ...]] = {}
    with _process_group():
        for norm in norms:
            if norm.key not in work:
                norm.layer.process_group = dist.group.WORLD
                work[norm.key] = layer_work(norm.layer, norm.shape, kernels).operations
    return [work[norm.key] for norm in norms]


def resnet_row(name: str, card: Card, kernels: str, synchronise: bool) -> dict[str, Any]:
    """Predict a ResNet-50 step with a norm: its time on one GPU, the bytes sent, and the time added on several."""
    norms = resnet.build_norms(name) if synchronise else []
    local = [operation for norm in norms for operation in resnet.norm_operations(norm, kernels)]
    synchronized = [operation for operations in count_synchronized(norms, kernels) for operation in operations]
    sent = message_bytes(synchronized)
    others = [operation for operation in synchronized if operation.name != "allreduce_"]
    extra = gpu_seconds(others, card) - gpu_seconds(local, card)
    added = {ranks: extra + sum(all_reduce_seconds(size, ranks) for size in sent) for ranks in RANKS}
    return {
        "collectives": len(sent),
        "operations": len(others) - len(local),
        "operations_ms": extra * 1e3,
        "megabytes": sum(sent) / 1e6,
        "step_ms": resnet.step_seconds(name, kernels, card) * 1e3,
        "added_ms": {str(ranks): seconds * 1e3 for ranks, seconds in added.items()},
    }


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    """Initialize a process group that sends nothing, for counting."""
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=CARDS_PER_MACHINE)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
