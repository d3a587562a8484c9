"""Attention of several heads, with what decoding keeps from step to step."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Memory(NamedTuple):
    """Keys and values ``(N, heads, S, width / heads)``, and which may be seen, ``(N, 1, 1, S)``; None is all."""

    keys: Tensor
    values: Tensor
    seen: Tensor | None = None

    def after(self, past: Memory | None) -> Memory:
        """These behind earlier ones."""
        if past is None:
            return self
        return Memory(torch.cat([past.keys, self.keys], 2), torch.cat([past.values, self.values], 2), self.seen)

    def rows(self, index: Tensor) -> Memory:
        """Of these rows of the batch."""
        seen = None if self.seen is None else self.seen[index]
        return Memory(self.keys[index], self.values[index], seen)


class Attention(nn.Module):
    r"""Multi-head attention, :math:`\mathrm{softmax}(QK^T/\sqrt{d})\,V` a head (Vaswani et al., 2017).

    Args:
        width: of queries, keys and values; a multiple of ``heads``.
        heads: parts of the width that attend on their own.

    Shape:
        queries ``(N, T, width)``; keys and values by :meth:`remember` from ``(N, S, width)``; output as the queries.

    Example::

        >>> attention = Attention(8, 2)
        >>> x = torch.randn(3, 5, 8)
        >>> attention(x, attention.remember(x), causal=True).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"expected a width that is a multiple of the {heads} heads (got {width})")
        self.heads = heads
        self.query, self.output = nn.Linear(width, width), nn.Linear(width, width)
        # Keys and values in one product.
        self.memory = nn.Linear(width, 2 * width)

    def remember(self, x: Tensor, seen: Tensor | None = None) -> Memory:
        """Keys and values of x; ``seen`` is boolean ``(N, S)`` and False at padding, which nobody attends to."""
        keys, values = self.memory(x).chunk(2, -1)
        return Memory(self._split(keys), self._split(values), None if seen is None else seen[:, None, None])

    def forward(self, x: Tensor, memory: Memory, causal: bool = False) -> Tensor:
        found = F.scaled_dot_product_attention(
            self._split(self.query(x)), memory.keys, memory.values, memory.seen, is_causal=causal
        )
        return self.output(found.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # N, heads, T, width / heads
