"""The view ``x[N, G, K, L]`` of every input layout: the only place that knows how tensors lie in memory.

N samples, G groups, K features whitened together, L positions. No view copies unless the strides leave no choice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.mode import is_transformed


class Layout(NamedTuple):
    """How an input ``(N, C, ...)`` is seen as ``x[N, G, K, L]``, and back.

    ``groups`` is G and ``features`` is K. ``across`` tells what the K features are: the channels of a group, or, in
    Group Whitening, the groups of a sample. ``rows`` says that neighbouring channels are neighbours in memory, or are
    copied to be so; if all samples are ``pooled`` in one statistic, they are then one long run of rows,
    ``(1, G, K, N·L)``. The ``dual`` of vectors across groups has K and L exchanged; see :mod:`whitenorm.core.dual`.
    """

    groups: int
    features: int
    rows: bool
    pooled: bool = False
    across: bool = False
    dual: bool = False

    def split(self, x: Tensor) -> Tensor:
        """``(N, C, ...)`` as ``(N, G, K, L)``."""
        n, channels, *positions = x.shape
        length = math.prod(positions)
        if self.dual:
            return x.reshape(n, 1, self.features, channels // self.features).mT
        if self.across or not self.rows:
            return x.reshape(n, self.groups, self.features, channels * length // (self.groups * self.features))
        rows = (1, n * length) if self.pooled else (n, length)
        return x.movedim(1, x.ndim - 1).reshape(*rows, self.groups, self.features).permute(0, 2, 3, 1)

    def join(self, y: Tensor, like: Tensor) -> Tensor:
        """Undo :meth:`split`: the shape of ``like``, which this layout was made for, and its memory format."""
        if not self.rows:
            return (y.mT if self.dual else y).reshape(like.shape)
        n, channels, *positions = like.shape
        last = len(positions) + 1
        rows = y.reshape(n, channels, *positions).movedim(1, last) if self.across else y.permute(0, 3, 1, 2)
        joined = rows.reshape(n, *positions, channels)
        return joined.contiguous().movedim(last, 1) if channels_last(like) else joined.movedim(last, 1).contiguous()

    def empty(self, like: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A new tensor for an output of the shape and memory format of ``like``, and where to write it.

        The second is the split view of the first, or, where there is no such view, a tensor that :meth:`fill` copies.
        """
        if not self.rows:
            whole = like.new_empty(like.shape, dtype=dtype)
            return whole, self.split(whole)
        if not (self.across or channels_last(like)):
            n, channels, *positions = like.shape
            rows = like.new_empty(n, *positions, channels, dtype=dtype).movedim(-1, 1)
            return like.new_empty(like.shape, dtype=dtype), self.split(rows)
        channels, *positions = like.shape[1:]
        inner = [channels * math.prod(positions[i + 1 :]) for i in range(len(positions))]
        strides = (channels * math.prod(positions), 1, *inner)
        whole = torch.empty_strided(like.shape, strides, dtype=dtype, device=like.device)
        return whole, self.split(like.new_empty(like.shape, dtype=dtype) if self.across else whole)

    def fill(self, whole: Tensor, written: Tensor) -> Tensor:
        """What :meth:`empty` made, now that its second part is written."""
        if self.rows and (self.across or not channels_last(whole)):
            whole.copy_(written.reshape(whole.shape) if self.across else self.join(written, whole))
        return whole

    def parameter(self, vector: Tensor) -> Tensor:
        """A per-channel vector ``(C,)`` as ``(G, K)``, or, across groups, as ``(K, C / K, 1)``."""
        if self.across:
            matrix = vector.reshape(self.features, -1)
            return (matrix.mT if self.dual else matrix).unsqueeze(-1)
        return vector.reshape(self.groups, self.features)

    def channel_sums(self, values: Tensor) -> Tensor:
        """Sums ``(C,)`` over the samples of what is given a sample and channel, as ``(N, 1, K, C / K)``."""
        return (values.mT if self.dual else values).sum((0, 1)).reshape(-1)


def channel_groups(x: Tensor, group_size: int, pooled: bool) -> Layout:
    """Groups of neighbouring channels, whitened over positions, and with ``pooled`` over samples.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([2, 2, 3, 25])
        >>> x = torch.zeros(8, 6)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([1, 2, 3, 8])
    """
    rows = channels_last(x) or (pooled and _few_positions(x, group_size))
    return Layout(x.shape[1] // group_size, group_size, rows, pooled)


def _few_positions(x: Tensor, features: int) -> bool:
    """Whether a sample has so few positions that a K×K matrix of its own is larger than what it is made from.

    Copied to one run of rows, all samples together need one matrix a group, and one large product instead of N small
    ones. While a compiler traces it is not asked: it would tie what is exported to the size of the image.
    """
    return not is_transformed() and 2 * math.prod(x.shape[2:]) <= features


def sample_groups(x: Tensor, num_groups: int, may_be_dual: bool) -> Layout:
    """Each group's channels and positions in a row, and the rows of a sample whitened against each other.

    Vectors with more groups than channels in each have a smaller dual.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([2, 1, 3, 50])
        >>> x = torch.zeros(8, 6)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([8, 1, 2, 3])
    """
    vectors = math.prod(x.shape[2:]) == 1
    # In (N, C) the channels are one run of memory either way.
    rows = channels_last(x) and not vectors
    dual = may_be_dual and vectors and num_groups * num_groups > x.shape[1]
    return Layout(1, num_groups, rows, across=True, dual=dual)


def channels_last(x: Tensor) -> bool:
    """Whether neighbouring channels are neighbours in memory: ``(N, C)``, and channels-last formats.

    Example::

        >>> channels_last(torch.zeros(2, 3)), channels_last(torch.zeros(2, 3, 4, 4))
        (True, False)
        >>> channels_last(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
        True
    """
    if x.ndim == 2 or math.prod(x.shape[2:]) == 1:
        return True
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
