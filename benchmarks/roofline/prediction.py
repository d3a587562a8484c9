"""Prediction, not measurement, of the time that counted operations take on a GPU.

Operations run one after the other. Each takes as long as its launch, its memory traffic or its products, whichever is
longest. With fewer programs than multiprocessors, the others are idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.roofline import cards
from benchmarks.roofline.cards import Card
from benchmarks.roofline.work import Operation


def predict_seconds(operations: Iterable[Operation], card: Card) -> float:
    """Return the sum of the predicted seconds of all operations.

    Example::

        >>> card = Card("a card", bandwidth=1e12, fp32=1e13, tf32=1e14, processors=100, source="made up")
        >>> predict_seconds([Operation("add", bytes=1000, flops=0)], card)
        5e-06
    """
    return sum(_seconds(operation, card) for operation in operations)


def _seconds(operation: Operation, card: Card) -> float:
    launch = cards.TRITON_LAUNCH if operation.triton else cards.TORCH_LAUNCH
    memory = operation.bytes / (card.bandwidth * cards.BANDWIDTH_ATTAINED)
    return max(launch, memory, operation.flops / _rate(operation, card))


def _rate(operation: Operation, card: Card) -> float:
    """Return FLOPs per second. By default, torch uses TF32 for convolutions and float32 for matrix products."""
    share = min(1, operation.programs / card.processors) if operation.programs else 1
    fp32, tf32 = card.fp32 * cards.FP32_ATTAINED, card.tf32 * cards.TF32_ATTAINED
    if operation.triton:
        return share * tf32 / cards.PRODUCTS_OF_TF32
    return max(tf32, fp32) if "conv" in operation.name else share * fp32
