"""Prediction, not measurement, of the time that counted operations take on a GPU.

On the GPU, operations run one after the other. Each takes as long as its memory traffic or its products, whichever is
longer, and at least the shortest time of a kernel. With fewer programs than multiprocessors, the others are idle. The
host launches ahead of the GPU, so that a step takes as long as the slower of the two.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.roofline import cards
from benchmarks.roofline.cards import Card
from benchmarks.roofline.work import Operation

# Parts of its bytes that BatchNorm reads twice: x forward, x and grad backward.
_READ_AGAIN = {"native_batch_norm": 1 / 2, "native_batch_norm_backward": 2 / 3}


def predict_seconds(operations: Iterable[Operation], card: Card, triton_layers: int = 0) -> float:
    """Return the predicted seconds of a step, in which a number of layers use Triton kernels.

    Example::

        >>> card = Card("a card", bandwidth=1e12, fp32=1e13, tf32=1e14, processors=100, cache=1, source="made up")
        >>> predict_seconds([Operation("add", bytes=1000, flops=0)], card)
        5e-06
    """
    operations = list(operations)
    return max(gpu_seconds(operations, card), host_seconds(operations, triton_layers))


def gpu_seconds(operations: Iterable[Operation], card: Card) -> float:
    """Return the sum of the predicted seconds of all operations on the GPU."""
    return sum(_seconds(operation, card) for operation in operations)


def host_seconds(operations: Iterable[Operation], triton_layers: int) -> float:
    """Return the predicted seconds of the host."""
    launches = sum(cards.TRITON_LAUNCH if operation.triton else cards.TORCH_LAUNCH for operation in operations)
    return launches + triton_layers * cards.TRITON_LAYER


def _seconds(operation: Operation, card: Card) -> float:
    again = operation.bytes * _READ_AGAIN.get(operation.name, 0)
    moved = operation.bytes + (again if again > card.cache else 0)
    memory = moved / (card.bandwidth * cards.BANDWIDTH_ATTAINED)
    return max(cards.KERNEL, memory, operation.flops / _rate(operation, card))


def _rate(operation: Operation, card: Card) -> float:
    """Return FLOPs per second. By default, torch uses TF32 for convolutions and float32 for matrix products."""
    share = min(1, operation.programs / card.processors) if operation.programs else 1
    fp32, tf32 = card.fp32 * cards.FP32_ATTAINED, card.tf32 * cards.TF32_ATTAINED
    if operation.triton:
        return share * tf32 / cards.PRODUCTS_OF_TF32
    return max(tf32, fp32) if "conv" in operation.name else share * fp32
