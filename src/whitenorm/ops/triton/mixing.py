"""Switchable Whitening's mix of statistics, as the solve and its backward see it.

Each statistic is told by its place among the logits, or -1 where it takes no part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whitenorm.ops.triton.tiles import load_matrix, load_vector
from whitenorm.ops.types import STATISTICS, Method

# The logits of all statistics fit in.
PLACES = tl.constexpr(8)


def places(method: Method) -> dict[str, int]:
    """Where each statistic's logit is."""
    found = {name: place for place, name in enumerate(method.statistics)}
    return {name.upper(): found.get(name, -1) for name in STATISTICS}


@triton.jit
def softmax(logits, NUMBER: tl.constexpr):
    """The weights of the statistics, and zeros in the places after them."""
    place = tl.arange(0, PLACES)
    return tl.softmax(tl.load(logits + place, mask=place < NUMBER, other=float("-inf")))


@triton.jit
def weight_at(weights, PLACE: tl.constexpr):
    """The weight of one statistic: zero where it takes no part."""
    return tl.sum(tl.where(tl.arange(0, PLACES) == PLACE, weights, 0.0))


@triton.jit
def layer_moments(own_mean, own_cov, sample, groups, features, BLOCK_K: tl.constexpr):
    """Mean and variance of all channels of a sample, from the moments of its groups."""
    channels = groups * features
    own_mean += sample * channels
    own_cov += sample * channels * features
    k = tl.arange(0, BLOCK_K)
    total = 0.0
    for first in range(0, channels, features):
        total += tl.sum(load_vector(own_mean + first, k, features))
    mean = total / channels
    squares = 0.0
    for first in range(0, channels, features):
        apart = tl.where(k < features, load_vector(own_mean + first, k, features) - mean, 0.0)
        squares += tl.sum(load_diagonal(own_cov + first * features, k, features) + apart * apart)
    return mean, squares / channels


@triton.jit
def load_diagonal(matrix, k, features):
    """The diagonal of a K×K matrix, and zeros where there is none."""
    return tl.load(matrix + k * (features + 1), mask=k < features, other=0.0)


@triton.jit
def load_moments(mean, cov, matrix, k, features, BLOCK_K: tl.constexpr):
    """The moments of one group; zeros where none are given."""
    if mean is None:
        moments = tl.zeros((BLOCK_K,), tl.float32), tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    else:
        entries = load_matrix(cov + matrix * features * features, k, k, features)
        moments = load_vector(mean + matrix * features, k, features), entries
    return moments


@triton.jit
def statistic_mean(
    own, batch, layer, k, features, PLACE: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, LN: tl.constexpr
):
    """The mean in one place of the mix, from those of the sample, of the batch, and of the layer."""
    if PLACE == BW or PLACE == BN:
        mean = batch
    elif PLACE == LN:
        mean = tl.where(k < features, layer, 0.0)
    else:
        mean = own
    return mean


@triton.jit
def statistic_cov(
    own, batch, layer, eye,
    PLACE: tl.constexpr, BW: tl.constexpr, IW: tl.constexpr, BN: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """The covariance in one place of the mix."""
    if PLACE == BW:
        cov = batch
    elif PLACE == IW:
        cov = own
    elif PLACE == BN:
        cov = batch * eye
    elif PLACE == IN:
        cov = own * eye
    else:
        cov = layer * eye
    return cov
