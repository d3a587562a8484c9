"""How long counted work takes on a card, by a plain model: a prediction, and no measurement.

Operations come one after the other. Each takes as long as the host takes to launch it, or its memory to be moved, or
its products to be computed, whichever is longest. Fewer programs than multiprocessors leave the others idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.roofline import cards
from benchmarks.roofline.cards import Card
from benchmarks.roofline.work import Operation


def predicted_seconds(operations: Iterable[Operation], card: Card) -> float:
    """The sum over the operations.

    Example::

        >>> card = Card("a card", bandwidth=1e12, fp32=1e13, tf32=1e14, processors=100, source="made up")
        >>> predicted_seconds([Operation("add", bytes=1000, flops=0)], card)
        5e-06
    """
    return sum(_seconds(operation, card) for operation in operations)


def _seconds(operation: Operation, card: Card) -> float:
    launch = cards.TRITON_LAUNCH if operation.triton else cards.TORCH_LAUNCH
    memory = operation.bytes / (card.bandwidth * cards.BANDWIDTH_ATTAINED)
    return max(launch, memory, operation.flops / _rate(operation, card))


def _rate(operation: Operation, card: Card) -> float:
    """torch's convolutions use TF32 unless told otherwise, its matrix products float32."""
    share = min(1, operation.programs / card.processors) if operation.programs else 1
    fp32, tf32 = card.fp32 * cards.FP32_ATTAINED, card.tf32 * cards.TF32_ATTAINED
    if operation.triton:
        return share * tf32 / cards.PRODUCTS_OF_TF32
    return max(tf32, fp32) if "conv" in operation.name else share * fp32
