"""Second step: which statistics a sample is whitened with, over the batch, its own, or a learned mix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.moments import Moments

STATISTICS = ("bw", "iw", "bn", "in", "ln")
BATCH_STATISTICS = ("bw", "bn")
SAMPLE_STATISTICS = ("iw", "in", "ln")


class Pooled(NamedTuple):
    """The statistics to whiten with, ``(B, G, K)`` and ``(B, G, K, K)``, and those they were pooled from."""

    mean: Tensor
    cov: Tensor
    sample: Moments
    batch: Moments


class Weights(NamedTuple):
    """How much of each statistic goes into mean and covariance: one entry a statistic, each summing to 1."""

    mean: Tensor
    cov: Tensor


class LinearMap(NamedTuple):
    """What statistics add to the gradient of the input: ``matrix @ x + offset``."""

    matrix: Tensor
    offset: Tensor


def pool(sample: Moments, statistics: tuple[str, ...], weights: Weights | None, population: Moments | None) -> Pooled:
    r"""Mix the statistics of each sample and of the batch (Switchable Whitening):

    .. math:: \hat\mu = \sum_k \omega_k \mu_k, \qquad \hat\Sigma = \sum_k \omega'_k \Sigma_k, \qquad
              \Sigma_{bn} = \operatorname{diag} \Sigma_{bw}, \quad \Sigma_{in} = \operatorname{diag} \Sigma_{iw}, \quad
              \Sigma_{ln} = \sigma^2_{ln} I

    Without weights, the moments are the statistic: of the batch for ``("bw",)``, of each sample for ``("iw",)``.

    Args:
        sample: moments of each sample, or of the whole batch at once if only batch statistics are asked for.
        statistics: of ``"bw"``, ``"iw"``, ``"bn"``, ``"in"``, ``"ln"``.
        weights: of the statistics, in their order.
        population: what stands for the batch statistics at inference.
    """
    if weights is None:
        return Pooled(sample.mean, sample.cov, sample, sample)
    batch = _over_batch(sample) if population is None else population
    candidates = [_statistic(name, sample, batch) for name in statistics]
    means, covs = zip(*candidates, strict=True)
    return Pooled(_mix(weights.mean, means), _mix(weights.cov, covs), sample, batch)


def pool_backward(
    sample: Moments,
    batch: Moments,
    statistics: tuple[str, ...],
    weights: Weights | None,
    grad_mean: Tensor,
    grad_cov: Tensor,
    batch_is_constant: bool,
) -> tuple[LinearMap, Weights | None]:
    """The gradients of the mixed statistics, as a linear map of x and as gradients of the weights.

    A mean over m values adds grad/m to the gradient of each, a covariance (2/m)·grad·(x - mean), for symmetric grad.
    """
    matrix, offset = torch.zeros_like(grad_cov), torch.zeros_like(grad_mean)
    grad_weights_mean, grad_weights_cov = [], []
    for i, name in enumerate(statistics):
        mean_part, cov_part = grad_mean, grad_cov
        if weights is not None:
            mean, cov = _statistic(name, sample, batch)
            grad_weights_mean.append((grad_mean * mean).sum())
            grad_weights_cov.append((grad_cov * cov).sum())
            mean_part, cov_part = grad_mean * weights.mean[i], grad_cov * weights.cov[i]
        if batch_is_constant and name in BATCH_STATISTICS:
            continue
        added = _statistic_backward(name, sample, batch, mean_part, cov_part)
        matrix, offset = matrix + added.matrix, offset + added.offset
    if weights is None:
        return LinearMap(matrix, offset), None
    return LinearMap(matrix, offset), Weights(torch.stack(grad_weights_mean), torch.stack(grad_weights_cov))


def _mix(weights: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    total = weights[0] * tensors[0]
    for i in range(1, len(tensors)):
        total = total + weights[i] * tensors[i]
    return total


def _over_batch(sample: Moments) -> Moments:
    """The batch's moments from those of equally large samples: within samples, plus between them."""
    mean = sample.mean.mean(0, keepdim=True)
    between = (sample.mean - mean).unsqueeze(-1)
    cov = (sample.cov + between @ between.mT).mean(0, keepdim=True)
    return Moments(mean, cov, sample.number * sample.mean.shape[0])


def _over_layer(sample: Moments) -> tuple[Tensor, Tensor, int]:
    """Mean and variance ``(N, 1, 1)`` of all channels and positions of a sample, and their number."""
    mean = sample.mean.mean((1, 2), keepdim=True)
    variance = _diagonal(sample.cov) + (sample.mean - mean) ** 2
    return mean, variance.mean((1, 2), keepdim=True), sample.number * sample.mean[0].numel()


def _statistic(name: str, sample: Moments, batch: Moments) -> tuple[Tensor, Tensor]:
    if name == "bw":
        return batch.mean, batch.cov
    if name == "iw":
        return sample.mean, sample.cov
    if name == "bn":
        return batch.mean, torch.diag_embed(_diagonal(batch.cov))
    if name == "in":
        return sample.mean, torch.diag_embed(_diagonal(sample.cov))
    mean, variance, _ = _over_layer(sample)
    return mean.expand_as(sample.mean), torch.diag_embed(variance.expand_as(sample.mean))


def _statistic_backward(name: str, sample: Moments, batch: Moments, grad_mean: Tensor, grad_cov: Tensor) -> LinearMap:
    if name in ("bn", "in", "ln"):
        grad_cov = torch.diag_embed(_diagonal(grad_cov))
    if name == "ln":
        mean, _, number = _over_layer(sample)
        grad_mean = grad_mean.sum((1, 2), keepdim=True).expand_as(sample.mean)
        grad_variance = _diagonal(grad_cov).sum((1, 2), keepdim=True)
        matrix = torch.diag_embed(2 / number * grad_variance.expand_as(sample.mean))
        return LinearMap(matrix, grad_mean / number - _times(matrix, mean.expand_as(sample.mean)))
    if name in BATCH_STATISTICS:
        grad_mean, grad_cov = grad_mean.sum(0, keepdim=True), grad_cov.sum(0, keepdim=True)
    mean, _, number = batch if name in BATCH_STATISTICS else sample
    matrix = 2 / number * grad_cov
    return LinearMap(matrix, grad_mean / number - _times(matrix, mean))


def _diagonal(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=-2, dim2=-1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
