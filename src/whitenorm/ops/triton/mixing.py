"""Device functions that mix the statistics of Switchable Whitening, for the solve and its backward.

BW, IW, BN, IN and LN are the indices of the statistics among the logits, or -1 for those that a method does not use.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whitenorm.ops.triton.tiles import load_matrix, load_vector
from whitenorm.ops.types import STATISTICS

# Padded number of logits: all statistics fit in, and it is a power of two.
BLOCK_LOGITS = tl.constexpr(8)


def statistic_indices(statistics: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each statistic's logit, -1 if it has none, as compile-time arguments."""
    indices = {name: index for index, name in enumerate(statistics)}
    return {name.upper(): indices.get(name, -1) for name in STATISTICS} | {"STATISTICS": len(statistics)}


@triton.jit
def softmax(logits, STATISTICS: tl.constexpr):
    """Return the weights of the statistics, padded with zeros: ``[BLOCK_LOGITS]``."""
    index = tl.arange(0, BLOCK_LOGITS)
    return tl.softmax(tl.load(logits + index, mask=index < STATISTICS, other=float("-inf")))


@triton.jit
def weight_at(weights, INDEX: tl.constexpr):
    """Return the weight of one statistic, zero for an index of -1."""
    return tl.sum(tl.where(tl.arange(0, BLOCK_LOGITS) == INDEX, weights, 0.0))


@triton.jit
def layer_moments(sample_mean, sample_cov, sample, groups, features, BLOCK_K: tl.constexpr):
    """Return the mean and variance of all channels of a sample, from the moments of its groups."""
    channels = groups * features
    sample_mean += sample * channels
    sample_cov += sample * channels * features
    k = tl.arange(0, BLOCK_K)
    total = 0.0
    for first in range(0, channels, features):
        total += tl.sum(load_vector(sample_mean + first, k, features))
    mean = total / channels
    squares = 0.0
    for first in range(0, channels, features):
        difference = tl.where(k < features, load_vector(sample_mean + first, k, features) - mean, 0.0)
        squares += tl.sum(load_diagonal(sample_cov + first * features, k, features) + difference * difference)
    return mean, squares / channels


@triton.jit
def load_diagonal(matrix, k, features):
    """Load the diagonal of a K×K matrix, with zeros past its end."""
    return tl.load(matrix + k * (features + 1), mask=k < features, other=0.0)


@triton.jit
def load_moments(mean, cov, matrix, k, features, BLOCK_K: tl.constexpr):
    """Load the moments of one group, zeros if ``mean`` is None: ``[BLOCK_K]`` and ``[BLOCK_K, BLOCK_K]``."""
    if mean is None:
        moments = tl.zeros((BLOCK_K,), tl.float32), tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    else:
        entries = load_matrix(cov + matrix * features * features, k, k, features)
        moments = load_vector(mean + matrix * features, k, features), entries
    return moments


@triton.jit
def statistic_mean(
    sample, batch, layer, k, features, INDEX: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, LN: tl.constexpr
):
    """Return the mean at an index of the mix, one of those of the sample, the batch and the layer."""
    if INDEX == BW or INDEX == BN:
        mean = batch
    elif INDEX == LN:
        mean = tl.where(k < features, layer, 0.0)
    else:
        mean = sample
    return mean


@triton.jit
def statistic_cov(
    sample, batch, layer, eye,
    INDEX: tl.constexpr, BW: tl.constexpr, IW: tl.constexpr, BN: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Return the covariance at an index of the mix."""
    if INDEX == BW:
        cov = batch
    elif INDEX == IW:
        cov = sample
    elif INDEX == BN:
        cov = batch * eye
    elif INDEX == IN:
        cov = sample * eye
    else:
        cov = layer * eye
    return cov
