"""How noisy a normalization is at a batch size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm.diagnostics.conditioning import features_of
from whitenorm.layers import BatchWhitening
from whitenorm.ops.check import check_positive
from whitenorm.ops.statistics import channel_moments
from whitenorm.solvers import Solver

# Batches whose statistics are solved for at once, and the values in them.
_TOGETHER, _VALUES = 16, 2**22
# Of how many times the batch all the data are rather weighted than batches gathered.
_DENSE = 8
Operation = BatchWhitening | nn.modules.batchnorm._BatchNorm


class Disturbance(NamedTuple):
    """Of each sample ``(S,)``, and of the operation, their mean."""

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
    r"""The stochastic normalization disturbance, SND (IterNorm, equations 9 and 10).

    How far the normalised value of a sample x is from its mean over batches :math:`X^B_i` drawn from the data:

    .. math:: \hat\Delta_F(x) = \frac1s \sum_{i=1}^s \Big\lVert F(X^B_i; x) - \frac1s \sum_{j=1}^s F(X^B_j; x)
              \Big\rVert, \qquad \hat\Delta_F = \frac1N \sum_x \hat\Delta_F(x)

    Args:
        norm: what normalises: a :class:`BatchWhitening` layer of any kind, or a BatchNorm; its γ and β play no part.
        data: ``(N, d)``.
        batch_size: B, at most N.
        samples: how many x to average over, drawn from the data.
        repeats: s, how many batches are drawn.
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
    features_of(data)
    if norm.num_features != data.shape[1]:
        raise ValueError(f"expected data of {norm.num_features} features for {norm} (got {data.shape[1]})")
    chosen = data[torch.randperm(len(data), generator=generator)[:samples].to(data.device)]
    total = torch.zeros(len(chosen), dtype=data.dtype, device=data.device)
    with torch.no_grad():
        outputs = [
            _normalized(norm, data, chosen, batch_size, n, generator)
            for n in _portions(repeats, batch_size * data.shape[1])
        ]
        mean = sum(part.sum(0) for part in outputs) / repeats
        for part in outputs:
            total += torch.linalg.vector_norm(part - mean, dim=-1).sum(0)
    return Disturbance(total / repeats, (total / repeats).mean().item())


def _portions(repeats: int, values: int) -> list[int]:
    together = max(1, min(_TOGETHER, _VALUES // values))
    return [min(together, repeats - start) for start in range(0, repeats, together)]


def _normalized(
    norm: Operation, data: Tensor, x: Tensor, batch_size: int, repeats: int, generator: torch.Generator | None
) -> Tensor:
    """x ``(S, d)`` normalised with the statistics of as many batches, ``(repeats, S, d)``."""
    size = norm.group_size if isinstance(norm, BatchWhitening) else 1
    solver: Solver | None = norm.solver if isinstance(norm, BatchWhitening) else None
    drawn = torch.randint(len(data), (repeats, batch_size), generator=generator)
    if size == 1 and len(data) <= _DENSE * batch_size:
        mean, cov = _weighted_moments(data, drawn)
    else:
        batches = data[drawn.to(data.device)].mT  # repeats, d, B: each batch is a sample of its own
        mean, cov, _ = channel_moments(batches, size, pooled=False)
    identity = torch.eye(size, dtype=cov.dtype, device=cov.device)
    cov = cov + norm.eps * identity
    matrix = cov.rsqrt() if solver is None else solver.solve(cov)[0]
    groups = x.reshape(1, len(x), -1, size) - mean.unsqueeze(1)
    return torch.einsum("rgij,rsgj->rsgi", matrix, groups).flatten(2)


def _weighted_moments(data: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(repeats, d, 1)`` and variances ``(repeats, d, 1, 1)`` of batches, by how often each has each sample."""
    counts = torch.zeros(len(drawn), len(data), dtype=data.dtype).scatter_add_(
        1, drawn, torch.ones_like(drawn, dtype=data.dtype)
    )
    weights = (counts / drawn.shape[1]).to(data.device)
    shift = data.mean(0)
    centred = data - shift
    mean = weights @ centred
    var = (weights @ centred.square() - mean.square()).clamp_min(0)
    return (mean + shift).unsqueeze(-1), var[..., None, None]
