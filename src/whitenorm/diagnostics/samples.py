"""Rows of a norm's input or output, as many as its measures need."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm.layers import LayerWhitening

# Rows of features that are looked at, drawn at random from more.
_ROWS = 4096
# Channels whose covariance is taken, the first ones, in whole groups: its cost grows with their cube.
_WIDEST = 2048


class Seen(NamedTuple):
    """What is kept of a layer's input or output: some rows ``(R, C)``, and the shape ``(N, C, ...)`` of all."""

    rows: Tensor
    shape: torch.Size


def seen(layer: nn.Module, x: Tensor) -> Seen:
    """A copy of some values, for what follows may write into x."""
    x = _channels_second(layer, x.detach())
    if x.ndim < 2:
        return Seen(x.clone(), x.shape)
    flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)  # N, C, L
    chosen = _chosen(flat.shape[0] * flat.shape[2]).to(x.device)
    flat = flat[:, : _looked_at(layer, flat.shape[1])]
    return Seen(flat[chosen // flat.shape[2], :, chosen % flat.shape[2]], x.shape)


def _channels_second(layer: nn.Module, x: Tensor) -> Tensor:
    """``(N, C, ...)``, also of tokens ``(..., C)``."""
    if not isinstance(layer, (nn.LayerNorm, nn.RMSNorm, LayerWhitening)):
        return x
    last = tuple(layer.normalized_shape)
    is_last = tuple(x.shape[-len(last) :]) == last
    is_second = len(last) == 1 and x.ndim > 2 and x.shape[1] == last[0]
    # Some libraries' LayerNorms take channels second, and say so in their names where it could be either.
    if is_second and (not is_last or "2d" in type(layer).__name__):
        return x
    return x.reshape(-1, math.prod(last))


def _looked_at(layer: nn.Module, width: int) -> int:
    """How many of the channels, in whole groups."""
    size = getattr(layer, "group_size", None) or 1
    return min(width, max(_WIDEST // size, 1) * size)


@functools.lru_cache(maxsize=64)
def _chosen(number: int) -> Tensor:
    """Which of as many rows are looked at: always the same."""
    if number <= _ROWS:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(0))[:_ROWS]
