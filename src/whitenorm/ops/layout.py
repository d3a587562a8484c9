"""The view ``x[N, G, K, J, P]`` of an input ``(N, C, ...)``: the only place that knows how tensors lie in memory.

N samples, G groups, K features whitened together, each of J channels of P positions. A view copies only where the
strides leave no choice or another order is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import is_transformed, may_write_in_place


class Layout(NamedTuple):
    """How an input ``(N, C, ...)`` is seen as ``x[N, G, K, J, P]``, and back.

    Attributes:
        groups: G.
        features: K.
        rows: neighbouring channels are neighbours in memory.
        pooled: all samples share a statistic; with ``rows`` they are then one long run, ``(1, G, K, 1, N·P)``.
        groups_as_features: the K features are the groups of a sample, of J channels each, as in Group Whitening;
            otherwise they are the channels of a group.
        dual: K and J are exchanged; see :mod:`whitenorm.ops.torch.dual`.
        copied: x is copied so that the values of a channel are one run, over all samples where these are pooled.
        channels_last: outputs are in a channels-last format.
    """

    groups: int
    features: int
    rows: bool = False
    pooled: bool = False
    groups_as_features: bool = False
    dual: bool = False
    copied: bool = False
    channels_last: bool = False

    def split(self, x: Tensor) -> Tensor:
        """Return ``(N, C, ...)`` as ``(N, G, K, J, P)``."""
        n, channels, *sizes = x.shape
        positions = math.prod(sizes)
        if self.groups_as_features:
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

    def split_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the shape of :meth:`split`, where samples stay apart and K and J are not exchanged."""
        n, channels, *sizes = shape
        return n, self.groups, self.features, channels // (self.groups * self.features), math.prod(sizes)

    def join(self, y: Tensor, like: Tensor) -> Tensor:
        """Undo :meth:`split`: return y in the shape of ``like``, which this layout was made for, and its format."""
        n, channels, *sizes = like.shape
        last = len(sizes) + 1
        if self.copied and not self.groups_as_features:
            joined = y.reshape(channels, n, *sizes).transpose(0, 1)
        elif self.rows:
            joined = y.squeeze(3).permute(0, 3, 1, 2).reshape(n, *sizes, channels).movedim(last, 1)
        else:
            joined = (y.transpose(2, 3) if self.dual else y).reshape(like.shape)
        if self.channels_last:
            return joined.movedim(1, last).contiguous().movedim(last, 1)
        return joined.contiguous()

    def allocate(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a new tensor of the shape and format of ``like``, and its split view to write to.

        Where there is no such view, the second is the split view of another tensor, which :meth:`finish` copies.
        """
        whole = _empty_channels_last(like) if self.channels_last else like.new_empty(like.shape)
        if not self.copied:
            return whole, self.split(whole)
        n, channels, *sizes = like.shape
        if self.groups_as_features:
            return whole, self.split(like.new_empty(like.shape))
        return whole, self.split(like.new_empty(channels, n, *sizes).transpose(0, 1))

    def finish(self, whole: Tensor, split: Tensor) -> Tensor:
        """Return the first tensor of :meth:`allocate` after its second was written."""
        if self.copied and self.groups_as_features:
            whole.copy_(split.reshape(whole.shape))
        elif self.copied:
            channels = whole.transpose(0, 1)
            channels.copy_(split.reshape(channels.shape))
        return whole

    def split_parameter(self, vector: Tensor) -> Tensor:
        """Return a parameter ``(C,)`` as ``(G, K, J)``."""
        matrix = vector.reshape(self.groups, self.features, -1)
        return matrix.mT if self.dual else matrix

    def join_parameter(self, parameter: Tensor) -> Tensor:
        """Undo :meth:`split_parameter`."""
        return (parameter.mT if self.dual else parameter).reshape(-1)

    def num_values(self, x: Tensor) -> int:
        """Return the number of values per feature in a statistic of ``x[N, G, K, J, P]``."""
        n, _, features, channels, positions = x.shape
        if self.dual:
            return features
        return (n if self.pooled else 1) * channels * positions


def _empty_channels_last(like: Tensor) -> Tensor:
    # Not by moving a dimension: a view may not be changed in place.
    channels, *sizes = like.shape[1:]
    inner = [channels * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return like.new_empty_strided(like.shape, (channels * math.prod(sizes), 1, *inner))


def run_into(step: Callable[..., Tensor], layout: Layout, like: Tensor, *args: Any) -> Tensor:
    """Run a step with ``out=`` as its last argument, and return the result in shape, format and dtype of ``like``.

    The result is a new tensor, never a view: an autograd function must not return a view, or an in-place activation
    behind the layer fails.
    """
    if hasattr(step, "allocate"):
        # An operator, which a compiler must not see write to a tensor.
        return step(*args, layout, like)
    if not may_write_in_place():
        return layout.join(step(*args, None), like).to(like.dtype, copy=True)
    whole, out = layout.allocate(like)
    step(*args, out)
    return layout.finish(whole, out) if layout.copied else whole


def channel_groups(x: Tensor, group_size: int, pooled: bool, handles_strides: bool = False) -> Layout:
    """Return the layout of groups of neighbouring channels, whitened over positions and, if ``pooled``, samples.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([2, 2, 3, 1, 25])
        >>> x = torch.zeros(8, 6)
        >>> channel_groups(x, 3, pooled=True).split(x).shape
        torch.Size([1, 2, 3, 1, 8])
    """
    last = is_channels_last(x)
    rows = last and not handles_strides
    # With few positions, a K×K matrix per sample is no smaller than the sample. Copied to one run per channel, all
    # samples need one matrix per group, and one large product instead of N small ones. Not while a compiler traces:
    # this would tie an exported graph to the size of the image.
    copied = pooled and not (handles_strides or rows) and math.prod(x.shape[2:]) <= group_size and not is_transformed()
    return Layout(x.shape[1] // group_size, group_size, rows, pooled, copied=copied, channels_last=last)


def sample_groups(x: Tensor, num_groups: int, may_be_dual: bool, handles_strides: bool = False) -> Layout:
    """Return the layout of Group Whitening: each group's channels and positions in a row, rows whitened per sample.

    Vectors with more groups than channels per group have a smaller dual.

    Example::

        >>> x = torch.zeros(2, 6, 5, 5)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([2, 1, 3, 2, 25])
        >>> x = torch.zeros(8, 6)
        >>> sample_groups(x, 3, may_be_dual=True).split(x).shape
        torch.Size([8, 1, 2, 3, 1])
    """
    is_vector = math.prod(x.shape[2:]) == 1
    last = is_channels_last(x)
    # The channels of (N, C) are one run of memory either way.
    copied = last and not is_vector and not handles_strides
    dual = may_be_dual and is_vector and num_groups * num_groups > x.shape[1]
    return Layout(1, num_groups, groups_as_features=True, dual=dual, copied=copied, channels_last=last)


def is_channels_last(x: Tensor) -> bool:
    """Return whether neighbouring channels are neighbours in memory, as in ``(N, C)`` and channels-last formats.

    Example::

        >>> is_channels_last(torch.zeros(2, 3)), is_channels_last(torch.zeros(2, 3, 4, 4))
        (True, False)
        >>> is_channels_last(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
        True
    """
    if x.ndim == 2 or math.prod(x.shape[2:]) == 1:
        return True
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
