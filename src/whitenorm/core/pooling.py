"""Second step: which statistics a sample is whitened with, over the batch, its own, or a learned mix."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.core.moments import Moments, over_batch
from whitenorm.core.ranks import Group, gradients_over_ranks, over_ranks

STATISTICS = ("bw", "iw", "bn", "in", "ln")
BATCH_STATISTICS = ("bw", "bn")
SAMPLE_STATISTICS = ("iw", "in", "ln")
# Of a single position these are nothing.
OVER_POSITIONS = ("iw", "in")


def only_batch(statistics: tuple[str, ...]) -> bool:
    """Whether none of the statistics is a sample's own."""
    return not any(name in SAMPLE_STATISTICS for name in statistics)


class Pooled(NamedTuple):
    """The statistics to whiten with, ``(B, G, K)`` and ``(B, G, K, K)``, and those they were pooled from."""

    mean: Tensor
    cov: Tensor
    sample: Moments
    batch: Moments


class Mixing(NamedTuple):
    """Logits, one a statistic, whose softmax says how much of each goes into the mean and into the covariance."""

    mean: Tensor
    cov: Tensor


class LinearMap(NamedTuple):
    """What statistics add to the gradient of the input: ``matrix @ (x - mean) + offset``, from the samples' mean."""

    matrix: Tensor
    offset: Tensor


def pool(
    sample: Moments,
    statistics: tuple[str, ...],
    mixing: Mixing | None,
    population: Moments | None,
    group: Group = None,
) -> Pooled:
    r"""Mix the statistics of each sample and of the batch (Switchable Whitening):

    .. math:: \hat\mu = \sum_k \omega_k \mu_k, \qquad \hat\Sigma = \sum_k \omega'_k \Sigma_k, \qquad
              \Sigma_{bn} = \operatorname{diag} \Sigma_{bw}, \quad \Sigma_{in} = \operatorname{diag} \Sigma_{iw}, \quad
              \Sigma_{ln} = \sigma^2_{ln} I

    Without mixing, the moments are the statistic: of the batch for ``("bw",)``, of each sample for ``("iw",)``.

    Args:
        sample: moments of each sample, or of the whole batch at once if only batch statistics are asked for.
        statistics: of ``"bw"``, ``"iw"``, ``"bn"``, ``"in"``, ``"ln"``.
        mixing: logits of ω and ω', in the order of the statistics.
        population: what stands for the batch statistics at inference.
        group: the ranks whose batches count as one.
    """
    if mixing is None:
        sample = over_ranks(sample, group) if only_batch(statistics) else sample
        return Pooled(sample.mean, sample.cov, sample, sample)
    batch = over_ranks(over_batch(sample), group) if population is None else population
    means, covs = zip(*[_statistic(name, sample, batch) for name in statistics], strict=True)
    return Pooled(_mix(mixing.mean.softmax(0), means), _mix(mixing.cov.softmax(0), covs), sample, batch)


def pool_backward(
    sample: Moments,
    batch: Moments,
    statistics: tuple[str, ...],
    mixing: Mixing | None,
    grad_mean: Tensor,
    grad_cov: Tensor,
    batch_is_constant: bool,
    group: Group = None,
) -> tuple[LinearMap, Mixing | None]:
    """The gradients of the pooled statistics, as a linear map of x, and as gradients of the logits.

    A mean over m values adds grad/m to the gradient of each, a covariance (2/m)·grad·(x - mean), for symmetric grad;
    x and the means count from the samples' own mean.
    """
    own, shared = _Gradients(sample, grad_mean, grad_cov), None
    if not batch_is_constant and any(name in BATCH_STATISTICS for name in statistics):
        shared = _over_batch(_Gradients(batch, grad_mean, grad_cov), group)
    if mixing is None:
        return _statistic_backward(statistics[0], sample.mean, shared or own), None
    mean_weights, cov_weights = mixing.mean.softmax(0), mixing.cov.softmax(0)
    means, covs = zip(*[_statistic(name, sample, batch) for name in statistics], strict=True)
    sources = [shared if name in BATCH_STATISTICS else own for name in statistics]
    through = [
        _statistic_backward(name, sample.mean, source, mean_weights[i], cov_weights[i])
        for i, (name, source) in enumerate(zip(statistics, sources, strict=True))
        if source is not None
    ]
    # Where only constants were mixed, x had no part in it.
    through = through or [LinearMap(torch.zeros_like(grad_cov), torch.zeros_like(grad_mean))]
    matrix, offset = [functools.reduce(torch.add, tensors) for tensors in zip(*through, strict=True)]
    grad_mixing = Mixing(_mix_backward(mean_weights, means, grad_mean), _mix_backward(cov_weights, covs, grad_cov))
    return LinearMap(matrix, offset), grad_mixing


class _Gradients(NamedTuple):
    """Of a mean and a covariance, beside the moments these are."""

    moments: Moments
    mean: Tensor
    cov: Tensor


def _over_batch(samples: _Gradients, group: Group) -> _Gradients:
    """From what each sample adds to the gradients of the batch's statistics to their sums, over all ranks."""
    batch, mean, cov = samples
    mean, cov = mean.sum(0, keepdim=True), cov.sum(0, keepdim=True)
    if group is not None:
        mean, cov, number = gradients_over_ranks(mean, cov, batch.number, group)
        batch = Moments(batch.mean, batch.cov, number)
    return _Gradients(batch, mean, cov)


def _mix(weights: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    return functools.reduce(torch.add, [weights[i] * tensor for i, tensor in enumerate(tensors)])


def _mix_backward(weights: Tensor, tensors: tuple[Tensor, ...], grad: Tensor) -> Tensor:
    """The gradient of the logits, from the tensors' differences from the first, which no common offset can drown."""
    inner = torch.stack([_inner(grad, tensor - tensors[0]) for tensor in tensors])
    return weights * (inner - (weights * inner).sum())


def _inner(grad: Tensor, tensor: Tensor) -> Tensor:
    return ((grad.sum(0, keepdim=True) if len(tensor) == 1 else grad) * tensor).sum()


def _over_layer(sample: Moments) -> tuple[Tensor, Tensor, int | Tensor]:
    """Mean and variance ``(N, 1, 1)`` of all channels and positions of a sample, and their number."""
    mean = sample.mean.mean((1, 2), keepdim=True)
    variance = _diagonal(sample.cov) + (sample.mean - mean) ** 2
    return mean, variance.mean((1, 2), keepdim=True), sample.number * sample.mean.shape[1] * sample.mean.shape[2]


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


def _statistic_backward(
    name: str, own_mean: Tensor, source: _Gradients, mean_weight: Tensor | float = 1.0, cov_weight: Tensor | float = 1.0
) -> LinearMap:
    sample, grad_mean, grad_cov = source
    if name in ("bn", "in", "ln"):
        grad_cov = torch.diag_embed(_diagonal(grad_cov))
    if name == "ln":
        mean, _, number = _over_layer(sample)
        grad_mean = grad_mean.sum((1, 2), keepdim=True).expand_as(sample.mean)
        grad_variance = _diagonal(grad_cov).sum((1, 2), keepdim=True)
        matrix = torch.diag_embed(2 / number * cov_weight * grad_variance.expand_as(sample.mean))
        return LinearMap(matrix, mean_weight / number * grad_mean - _times(matrix, mean - own_mean))
    mean, _, number = sample
    matrix = 2 / number * cov_weight * grad_cov
    return LinearMap(matrix, mean_weight / number * grad_mean - _times(matrix, mean - own_mean))


def _diagonal(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=-2, dim2=-1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    if len(matrix) == 1:
        return (vector.transpose(0, 1) @ matrix[0].mT).transpose(0, 1)
    return (matrix * vector.unsqueeze(-2)).sum(-1)
