"""The view ``x[N, G, K, J, P]`` of every input layout: the only place that knows how tensors lie in memory.

N samples, G groups, K features whitened together, each of J channels of P positions. No view copies unless the strides
leave no choice, or another order is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from whitenorm._runtime import is_transformed, may_write_in_place


class Layout(NamedTuple):
    """How an input ``(N, C, ...)`` is seen as ``x[N, G, K, J, P]``, and back.

    ``groups`` is G and ``features`` is K. ``across`` tells what the K features are: the channels of a group, or, in
    Group Whitening, the groups of a sample, of J channels each. ``rows`` says that neighbouring channels are neighbours
    in memory; if all samples are ``pooled`` in one statistic, they are then one long run, ``(1, G, K, 1, N·P)``. A
    ``copied`` x lies one channel after the other: with all samples of each, where they are pooled, in one run again,
    or, across groups, in each sample. The ``dual`` of vectors across groups has K and J exchanged; see
    :mod:`whitenorm.ops.torch.dual`. Outputs are ``channels_last`` where inputs are.
    """

    groups: int
    features: int
    rows: bool = False
    pooled: bool = False
    across: bool = False
    dual: bool = False
    copied: bool = False
    channels_last: bool = False

    def split(self, x: Tensor) -> Tensor:
        """``(N, C, ...)`` as ``(N, G, K, J, P)``."""
        n, channels, *sizes = x.shape
        positions = math.prod(sizes)
        if self.across:
            x = x.contiguous() if self.copied else x
            split = x.reshape(n, 1, self.features, channels // self.features, positions)
            return split.transpose(2, 3) if self.dual else split
        if self.copied:
            return x.transpose(0, 1).reshape(1, self.groups, self.features, 1, n * positions)
        if not self.rows:
            return x.reshape(n, self.groups, self.features, 1, positions)
        run = (1, n * positions) if self.pooled else (n, positions)
        rows = x.movedim(1, x.ndim - 1).reshape(*run, self.groups, self.features)
        return rows.permute(0, 2, 3, 1).unsqueeze(3)

    def join(self, y: Tensor, like: Tensor) -> Tensor:
        """Undo :meth:`split`: the shape of ``like``, which this layout was made for, and its memory format."""
        n, channels, *sizes = like.shape
        last = len(sizes) + 1
        if self.copied and not self.across:
            joined = y.reshape(channels, n, *sizes).transpose(0, 1)
        elif self.rows:
            joined = y.squeeze(3).permute(0, 3, 1, 2).reshape(n, *sizes, channels).movedim(last, 1)
        else:
            joined = (y.transpose(2, 3) if self.dual else y).reshape(like.shape)
        if self.channels_last:
            return joined.movedim(1, last).contiguous().movedim(last, 1)
        return joined.contiguous()

    def empty(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """A new tensor for an output of the shape and memory format of ``like``, and where to write it.

        The second is the split view of the first, or, where there is no such view, a tensor that :meth:`fill` copies.
        """
        whole = _empty_channels_last(like) if self.channels_last else like.new_empty(like.shape)
        if not self.copied:
            return whole, self.split(whole)
        n, channels, *sizes = like.shape
        copy = like.new_empty(like.shape) if self.across else like.new_empty(channels, n, *sizes).transpose(0, 1)
        return whole, self.split(copy)

    def fill(self, whole: Tensor, written: Tensor) -> Tensor:
        """What :meth:`empty` made, now that its second part is written."""
        if self.copied and self.across:
            whole.copy_(written.reshape(whole.shape))
        elif self.copied:
            channels = whole.transpose(0, 1)
            channels.copy_(written.reshape(channels.shape))
        return whole

    def parameter(self, vector: Tensor) -> Tensor:
        """A per-channel vector ``(C,)`` as ``(G, K, J)``."""
        matrix = vector.reshape(self.groups, self.features, -1)
        return matrix.mT if self.dual else matrix

    def vector(self, parameter: Tensor) -> Tensor:
        """Undo :meth:`parameter`."""
        return (parameter.mT if self.dual else parameter).reshape(-1)

    def values(self, x: Tensor) -> int:
        """How many values the statistics of ``x[N, G, K, J, P]`` are over: of the batch, if pooled, or of a sample."""
        n, _, features, channels, positions = x.shape
        if self.dual:
            return features
        return (n if self.pooled else 1) * channels * positions


def _empty_channels_last(like: Tensor) -> Tensor:
    # Not by moving a dimension: a view is not to be changed in place.
    channels, *sizes = like.shape[1:]
    inner = [channels * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return like.new_empty_strided(like.shape, (channels * math.prod(sizes), 1, *inner))


def written(step: Callable[..., Tensor], layout: Layout, like: Tensor, *given: Any) -> Tensor:
    """Run a step, and return its result in the shape, memory format and dtype of ``like``.

    The result is always a new tensor, never a view of one: an autograd function must not return a view, or an in-place
    activation behind the layer fails.
    """
    if not may_write_in_place():
        return layout.join(step(*given, None), like).to(like.dtype, copy=True)
    whole, out = layout.empty(like)
    step(*given, out)
    return layout.fill(whole, out)


def channel_groups(x: Tensor, group_size: int, pooled: bool, as_it_lies: bool = False) -> Layout:
    """Groups of neighbouring channels, whitened over positions, and with ``pooled`` over samples.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([2, 2, 3, 1, 25])
        >>> x = torch.zeros(8, 6)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([1, 2, 3, 1, 8])
    """
    last = channels_last(x)
    rows = not as_it_lies and last
    copied = not as_it_lies and not rows and pooled and _few_positions(x, group_size)
    return Layout(x.shape[1] // group_size, group_size, rows, pooled, copied=copied, channels_last=last)


def _few_positions(x: Tensor, features: int) -> bool:
    """Whether a sample has so few positions that a K×K matrix of its own is no smaller than what it is made from.

    Copied to one run a channel, all samples together need one matrix a group, and one large product instead of N small
    ones. While a compiler traces it is not asked: it would tie what is exported to the size of the image.
    """
    return not is_transformed() and math.prod(x.shape[2:]) <= features


def sample_groups(x: Tensor, num_groups: int, may_be_dual: bool, as_it_lies: bool = False) -> Layout:
    """Each group's channels and positions in a row, and the rows of a sample whitened against each other.

    Vectors with more groups than channels in each have a smaller dual.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([2, 1, 3, 2, 25])
        >>> x = torch.zeros(8, 6)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([8, 1, 2, 3, 1])
    """
    vectors = math.prod(x.shape[2:]) == 1
    # In (N, C) the channels are one run of memory either way.
    last = channels_last(x)
    copied = last and not vectors and not as_it_lies
    dual = may_be_dual and vectors and num_groups * num_groups > x.shape[1]
    return Layout(1, num_groups, across=True, dual=dual, copied=copied, channels_last=last)


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
