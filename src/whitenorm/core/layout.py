"""The view ``x[N, G, K, L]`` of every input layout: the only place that knows how tensors lie in memory.

N samples, G groups, K features whitened together, L positions. No view copies unless a strided input leaves no choice.
"""

from __future__ import annotations

import math

from torch import Tensor


def split_channels(x: Tensor, group_size: int, pooled: bool) -> Tensor:
    """``(N, C, ...)`` as ``(N, C / group_size, group_size, L)``: groups of neighbouring channels.

    With ``pooled``, statistics are over the samples too. Where the channels lie last in memory, as in ``(N, C)`` and
    channels-last inputs, all samples are then one run of rows, ``(1, G, K, N·L)``.

    Example::

        >>> split_channels(torch.zeros(2, 6, 5, 5), 3, pooled=True).shape
        torch.Size([2, 2, 3, 25])
        >>> split_channels(torch.zeros(8, 6), 3, pooled=True).shape
        torch.Size([1, 2, 3, 8])
    """
    n, channels, *positions = x.shape
    length = math.prod(positions)
    groups = (channels // group_size, group_size)
    if not channels_last(x):
        return x.reshape(n, *groups, length)
    rows = (1, n * length) if pooled else (n, length)
    return x.movedim(1, -1).reshape(*rows, *groups).permute(0, 2, 3, 1)


def split_sample(x: Tensor, num_groups: int) -> Tensor:
    """``(N, C, ...)`` as ``(N, 1, num_groups, L)``: each group's channels and positions in a row, as in GroupNorm.

    Example::

        >>> split_sample(torch.zeros(2, 6, 5, 5), 3).shape
        torch.Size([2, 1, 3, 50])
    """
    return x.reshape(x.shape[0], 1, num_groups, math.prod(x.shape[1:]) // num_groups)


def join_channels(y: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`split_channels`: the shape and memory format of ``like``."""
    if not channels_last(like):
        return y.reshape(like.shape)
    n, channels, *positions = like.shape
    return y.permute(0, 3, 1, 2).reshape(n, *positions, channels).movedim(-1, 1)


def join_sample(y: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`split_sample`: the shape and memory format of ``like``."""
    y = y.reshape(like.shape)
    return y.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last(like) else y


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


def expand_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """A per-channel parameter ``(C,)`` as it broadcasts over ``(N, C, ...)``."""
    return parameter.view(-1, *[1] * (x.ndim - 2))
