"""Which statistics a sample is whitened with: over the batch, its own, or a learned mix; and the way back."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.ops.types import BATCH_STATISTICS, AffineGrad, Mixing, Moments, Statistics


def pool(measured: Statistics, statistics: tuple[str, ...], mixing: Mixing | None) -> tuple[Tensor, Tensor]:
    r"""Mix the statistics of each sample and of the batch (Switchable Whitening):

    .. math:: \hat\mu = \sum_k \omega_k \mu_k, \qquad \hat\Sigma = \sum_k \omega'_k \Sigma_k, \qquad
              \Sigma_{bn} = \operatorname{diag} \Sigma_{bw}, \quad \Sigma_{in} = \operatorname{diag} \Sigma_{iw}, \quad
              \Sigma_{ln} = \sigma^2_{ln} I

    Without mixing, the moments are the statistic: of the batch for ``("bw",)``, of each sample for ``("iw",)``.

    Args:
        measured: the moments; at inference, the population's stand for those of the batch.
        statistics: of ``"bw"``, ``"iw"``, ``"bn"``, ``"in"``, ``"ln"``.
        mixing: logits of ω and ω', in the order of the statistics.
    """
    if mixing is None:
        mean, cov, _ = source(measured, statistics[0])
        return mean, cov
    means, covs = _parts(measured, statistics)
    return _mix(mixing.mean.softmax(0), means), _mix(mixing.cov.softmax(0), covs)


def source(measured: Statistics, name: str) -> Moments:
    """The moments that a statistic is made of."""
    moments = measured.batch if name in BATCH_STATISTICS else measured.sample
    assert moments is not None
    return moments


class PoolGrads(NamedTuple):
    """The gradients of the pooled statistics, as linear maps of x, and as gradients of the logits."""

    sample: AffineGrad | None
    batch: AffineGrad | None
    mixing: Mixing | None


def pool_backward(
    measured: Statistics,
    statistics: tuple[str, ...],
    mixing: Mixing | None,
    grad_mean: Tensor,
    grad_cov: Tensor,
    batch_is_constant: bool,
) -> PoolGrads:
    """A mean over m values adds grad/m to the gradient of each, a covariance (2/m)·grad·(x - mean), for symmetric grad.

    What the samples add to the gradients of the batch's statistics is summed.
    """
    if mixing is None:
        linear = _linear(grad_mean, grad_cov, source(measured, statistics[0]), pooled=False)
        return PoolGrads(None, linear, None) if statistics[0] in BATCH_STATISTICS else PoolGrads(linear, None, None)
    weights = mixing.mean.softmax(0), mixing.cov.softmax(0)
    of = dict(zip(statistics, zip(*weights, strict=True), strict=True))
    batch = None if batch_is_constant else _weighted(grad_mean, grad_cov, of, "bw", "bn", measured.batch)
    sample = _weighted(grad_mean, grad_cov, of, "iw", "in", measured.sample)
    if "ln" in statistics:
        sample = _with_layer(grad_mean, grad_cov, *of["ln"], measured.sample, sample)
    parts = _parts(measured, statistics)
    return PoolGrads(sample, batch, Mixing(*map(_mix_backward, weights, parts, (grad_mean, grad_cov))))


def _linear(grad_mean: Tensor, matrix: Tensor, moments: Moments, pooled: bool) -> AffineGrad:
    if pooled and matrix.shape[0] != 1:
        grad_mean, matrix = grad_mean.sum(0, keepdim=True), matrix.sum(0, keepdim=True)
    return AffineGrad(matrix, grad_mean, moments.mean, moments.num_values)


def _weighted(
    grad_mean: Tensor,
    grad_cov: Tensor,
    weights: dict[str, tuple[Tensor, Tensor]],
    full: str,
    diagonal: str,
    moments: Moments | None,
) -> AffineGrad | None:
    """Through a covariance and its diagonal, as far as they were mixed."""
    present = [weights[name] for name in (full, diagonal) if name in weights]
    if not present:
        return None
    assert moments is not None
    matrices = []
    if full in weights:
        matrices.append(weights[full][1] * grad_cov)
    if diagonal in weights:
        matrices.append(torch.diag_embed(weights[diagonal][1] * _diagonal(grad_cov)))
    share = functools.reduce(torch.add, [mean_weight for mean_weight, _ in present])
    matrix = functools.reduce(torch.add, matrices)
    return _linear(share * grad_mean, matrix, moments, pooled=full in BATCH_STATISTICS)


def _with_layer(
    grad_mean: Tensor,
    grad_cov: Tensor,
    mean_weight: Tensor,
    cov_weight: Tensor,
    per_sample: Moments | None,
    sample: AffineGrad | None,
) -> AffineGrad:
    """Through mean and variance of a sample's whole layer, in values a feature and about the sample's own means."""
    assert per_sample is not None
    mean, _ = _over_layer(per_sample)
    share = 1 / (per_sample.mean.shape[1] * per_sample.mean.shape[2])
    slope = share * cov_weight * _diagonal(grad_cov).sum((1, 2), keepdim=True)  # N, 1, 1
    offset = share * mean_weight * grad_mean.sum((1, 2), keepdim=True) - 2 * slope * (mean - per_sample.mean)
    matrix = torch.diag_embed(slope.expand_as(per_sample.mean))
    if sample is not None:
        matrix, offset = sample.matrix + matrix, sample.offset + offset
    return AffineGrad(matrix, offset, per_sample.mean, per_sample.num_values)


def _parts(measured: Statistics, statistics: tuple[str, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """The mean and the covariance of every statistic."""
    pairs = [_statistic(name, source(measured, name)) for name in statistics]
    return [mean for mean, _ in pairs], [cov for _, cov in pairs]


def _statistic(name: str, moments: Moments) -> tuple[Tensor, Tensor]:
    if name in ("bw", "iw"):
        return moments.mean, moments.cov
    if name in ("bn", "in"):
        return moments.mean, torch.diag_embed(_diagonal(moments.cov))
    mean, variance = _over_layer(moments)
    return mean.expand_as(moments.mean), torch.diag_embed(variance.expand_as(moments.mean))


def _over_layer(per_sample: Moments) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(N, 1, 1)`` of all channels and positions of a sample."""
    mean = per_sample.mean.mean((1, 2), keepdim=True)
    variance = _diagonal(per_sample.cov) + (per_sample.mean - mean) ** 2
    return mean, variance.mean((1, 2), keepdim=True)


def _mix(weights: Tensor, tensors: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, [weights[i] * tensor for i, tensor in enumerate(tensors)])


def _mix_backward(weights: Tensor, tensors: list[Tensor], grad: Tensor) -> Tensor:
    """The gradient of the logits, from the tensors' differences from the first, which no common offset can drown."""
    inner = torch.stack([_inner(grad, tensor - tensors[0]) for tensor in tensors])
    return weights * (inner - (weights * inner).sum())


def _inner(grad: Tensor, tensor: Tensor) -> Tensor:
    return ((grad.sum(0, keepdim=True) if tensor.shape[0] == 1 else grad) * tensor).sum()


def _diagonal(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=-2, dim2=-1)
