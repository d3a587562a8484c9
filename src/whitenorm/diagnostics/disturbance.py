"""Noise of batch statistics: the stochastic normalization disturbance (IterNorm)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.conditioning import flatten_features
from whitenorm.layers import BatchWhitening
from whitenorm.ops.check import check_positive
from whitenorm.ops.statistics import channel_moments
from whitenorm.solvers import Solver

# Limits on the batches, and on the values in them, that are normalized at once.
_MAX_BATCHES, _MAX_VALUES = 16, 2**22
# Up to this ratio of data to batch size, weighting all data is faster than gathering batches.
_DENSE_RATIO = 8
Operation = BatchWhitening | nn.modules.batchnorm._BatchNorm


class Disturbance(NamedTuple):
    """Disturbance of each sample ``(S,)``, and their mean, which is the disturbance of the operation."""

    samples: Tensor
    operation: float


def stochastic_disturbance(
    norm: Operation,
    data: Tensor,
    batch_size: int,
    samples: int = 100,
    repeats: int = 100,
    *,
    generator: torch.Generator | None = None,
) -> Disturbance:
    r"""Return the stochastic normalization disturbance, SND (IterNorm, equations 9 and 10).

    It is the mean distance of a sample's normalized value from its mean over batches :math:`X^B_i` drawn from the data:

    .. math:: \hat\Delta_F(x) = \frac1s \sum_{i=1}^s \Big\lVert F(X^B_i; x) - \frac1s \sum_{j=1}^s F(X^B_j; x)
              \Big\rVert, \qquad \hat\Delta_F = \frac1N \sum_x \hat\Delta_F(x)

    Args:
        norm: a :class:`BatchWhitening` layer of any kind, or a BatchNorm; its γ and β are not applied.
        data: ``(N, d)``.
        batch_size: B, at most N.
        samples: number of samples x to average over, drawn from the data.
        repeats: s, the number of batches drawn.
        generator: for the draws.

    Example::

        >>> data = torch.randn(1000, 8)
        >>> small = stochastic_disturbance(nn.BatchNorm1d(8), data, batch_size=8)
        >>> large = stochastic_disturbance(nn.BatchNorm1d(8), data, batch_size=128)
        >>> small.operation > large.operation
        True
    """
    for name, value in (("batch_size", batch_size), ("samples", samples), ("repeats", repeats)):
        check_positive(name, value)
    if not isinstance(norm, Operation):
        raise ValueError(
            f"expected a norm with statistics of the batch (got {type(norm).__name__}); others have no SND"
        )
    if data.ndim != 2:
        raise ValueError(f"expected data (N, d) (got shape {tuple(data.shape)}); flatten positions into samples first")
    if not 2 <= batch_size <= len(data):
        raise ValueError(f"expected batch_size from 2 to the {len(data)} data (got {batch_size})")
    flatten_features(data)
    if norm.num_features != data.shape[1]:
        raise ValueError(f"expected data of {norm.num_features} features for {norm} (got {data.shape[1]})")
    x = data[torch.randperm(len(data), generator=generator)[:samples].to(data.device)]
    total = torch.zeros(len(x), dtype=data.dtype, device=data.device)
    chunk = max(1, min(_MAX_BATCHES, _MAX_VALUES // (batch_size * data.shape[1])))
    with torch.no_grad():
        outputs = [
            _normalize(norm, data, x, batch_size, min(chunk, repeats - start), generator)
            for start in range(0, repeats, chunk)
        ]
        mean = sum(output.sum(0) for output in outputs) / repeats
        for output in outputs:
            total += torch.linalg.vector_norm(output - mean, dim=-1).sum(0)
    return Disturbance(total / repeats, (total / repeats).mean().item())


def _normalize(
    norm: Operation, data: Tensor, x: Tensor, batch_size: int, num_batches: int, generator: torch.Generator | None
) -> Tensor:
    """Return x ``(S, d)`` normalized by the statistics of each of several random batches, ``(num_batches, S, d)``."""
    size = norm.group_size if isinstance(norm, BatchWhitening) else 1
    solver: Solver | None = norm.solver if isinstance(norm, BatchWhitening) else None
    indices = torch.randint(len(data), (num_batches, batch_size), generator=generator)
    if size == 1 and len(data) <= _DENSE_RATIO * batch_size:
        mean, cov = _batch_moments(data, indices)
    else:
        batches = data[indices.to(data.device)].mT  # num_batches, d, B: each batch counts as one sample
        mean, cov, _ = channel_moments(batches, size, pooled=False)
    identity = torch.eye(size, dtype=cov.dtype, device=cov.device)
    cov = cov + norm.eps * identity
    matrix = cov.rsqrt() if solver is None else solver.solve(cov)[0]
    groups = x.reshape(1, len(x), -1, size) - mean.unsqueeze(1)
    return torch.einsum("rgij,rsgj->rsgi", matrix, groups).flatten(2)


def _batch_moments(data: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return means ``(R, d, 1)`` and variances ``(R, d, 1, 1)`` of batches of data, by how often each has each row."""
    counts = torch.zeros(len(indices), len(data), dtype=data.dtype).scatter_add_(
        1, indices, torch.ones_like(indices, dtype=data.dtype)
    )
    weights = (counts / indices.shape[1]).to(data.device)
    shift = data.mean(0)
    centred = data - shift
    mean = weights @ centred
    var = (weights @ centred.square() - mean.square()).clamp_min(0)
    return (mean + shift).unsqueeze(-1), var[..., None, None]
