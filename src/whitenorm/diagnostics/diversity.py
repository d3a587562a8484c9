"""How much of the space of two features is used."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm.diagnostics.conditioning import features_of
from whitenorm.ops.check import check_positive


def diversity(
    features: Tensor, bins: int = 1000, pairs: int = 10, *, generator: torch.Generator | None = None
) -> float:
    r"""The entropy of pairs of features over a grid, averaged over sampled pairs (GW, equation 13).

    .. math:: \Gamma_{2,T} = -\sum_{i=1}^{T^2} p_i \log p_i

    Each feature is divided by its largest absolute value, and the square :math:`[-1, 1]^2` cut into T×T bins; p_i is
    the share of samples in a bin. Constrained features, which take few values, have a low diversity. (The paper prints
    the sum without the minus, and speaks of the entropy, which this is.)

    Args:
        features: ``(N, C)`` or ``(N, C, ...)`` with C of at least 2.
        bins: T.
        pairs: how many pairs to average over; all of them, if there are fewer.
        generator: for the choice of pairs.

    Example::

        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(diversity(corners, bins=10), 6)  # log 4
        1.386294
    """
    check_positive("bins", bins)
    check_positive("pairs", pairs)
    rows = features_of(features, least=1)
    count = rows.shape[1]
    if count < 2:
        raise ValueError(f"expected at least two features (got {count}); diversity is of pairs")
    largest = rows.abs().amax(0).clamp_min(torch.finfo(rows.dtype).tiny)
    # The right edge belongs to the last bin.
    cells = ((rows / largest + 1) / 2 * bins).long().clamp_max(bins - 1)
    first, second = torch.triu_indices(count, count, offset=1)
    chosen = torch.randperm(len(first), generator=generator)[:pairs].to(rows.device)
    entropies = [_entropy(cells[:, first[i]] * bins + cells[:, second[i]]) for i in chosen.tolist()]
    return torch.stack(entropies).mean().item()


def _entropy(cells: Tensor) -> Tensor:
    counts = torch.unique(cells, return_counts=True)[1].double()
    shares = counts / counts.sum()
    return -(shares * shares.log()).sum()
