"""What statistics of all ranks add to a training step, predicted by a plain model of an all-reduce.

A collective takes as long as its start, two hops a level of a tree (within a machine, and between machines), and its
bytes, of which each card sends and receives 2(n - 1)/n times, by the slowest link on the way. Nothing hides those of
the statistics: the next step waits for them. The gradient's own all-reduce runs beside the backward pass.
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
from benchmarks.roofline.prediction import predict_seconds
from benchmarks.roofline.work import Operation, layer_work

CARDS_A_MACHINE = 8
RANKS = (8, 64, 256, 1024)
# Seconds: of a collective's start, of a hop within a machine, of one between machines.
START, HOP_WITHIN, HOP_BETWEEN = 10e-6, 2e-6, 5e-6
# Bytes a second and card, attained: NVLink's of an A100 machine, and a network of 200 Gbit/s a card.
LINK_WITHIN, LINK_BETWEEN = 230e9, 20e9


def all_reduce_seconds(message: int, ranks: int) -> float:
    """How long an all-reduce of this many bytes takes.

    Example::

        >>> round(all_reduce_seconds(0, 8) * 1e6), round(all_reduce_seconds(0, 1024) * 1e6)
        (22, 92)
    """
    within, machines = min(ranks, CARDS_A_MACHINE), math.ceil(ranks / CARDS_A_MACHINE)
    hops = 2 * (math.ceil(math.log2(within)) * HOP_WITHIN + math.ceil(math.log2(machines)) * HOP_BETWEEN)
    link = LINK_WITHIN if machines == 1 else LINK_BETWEEN
    return START + hops + 2 * (ranks - 1) / ranks * message / link


def messages(operations: Iterable[Operation]) -> list[int]:
    """The bytes of each all-reduce among the operations; it reads and writes them."""
    return [operation.bytes // 2 for operation in operations if operation.name == "allreduce_"]


def synchronised(norms: list[Norm], kernels: str) -> list[tuple[Operation, ...]]:
    """The operations of each norm with statistics of all ranks."""
    found: dict[Hashable, tuple[Operation, ...]] = {}
    with _process_group():
        for norm in norms:
            if norm.key not in found:
                norm.layer.process_group = dist.group.WORLD
                found[norm.key] = layer_work(norm.layer, norm.shape, kernels).operations
    return [found[norm.key] for norm in norms]


def resnet_row(name: str, card: Card, kernels: str, synchronise: bool) -> dict[str, Any]:
    """A ResNet-50 step with these norms: its time on one card, what is sent, and what that adds on more."""
    norms = resnet.norms(name) if synchronise else []
    own = [operation for norm in norms for operation in resnet.norm_work(norm, kernels)]
    joined = [operation for operations in synchronised(norms, kernels) for operation in operations]
    sent = messages(joined)
    others = [operation for operation in joined if operation.name != "allreduce_"]
    extra = predict_seconds(others, card) - predict_seconds(own, card)
    added = {ranks: extra + sum(all_reduce_seconds(size, ranks) for size in sent) for ranks in RANKS}
    return {
        "collectives": len(sent),
        "operations": len(others) - len(own),
        "operations_ms": extra * 1e3,
        "megabytes": sum(sent) / 1e6,
        "step_ms": predict_seconds(resnet.step(name, kernels), card) * 1e3,
        "added_ms": {str(ranks): seconds * 1e3 for ranks, seconds in added.items()},
    }


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    """One that sends nothing: for counting alone."""
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=CARDS_A_MACHINE)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
