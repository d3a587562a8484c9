"""The learned mix of statistics of Switchable Whitening, and its backward."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from whitenorm.ops.types import BATCH_STATISTICS, AffineGrad, Mixing, Moments, Statistics


def mix(statistics: Statistics, names: tuple[str, ...], mixing: Mixing) -> tuple[Tensor, Tensor]:
    r"""Return the mixed mean and covariance of each sample:

    .. math:: \hat\mu = \sum_k \omega_k \mu_k, \qquad \hat\Sigma = \sum_k \omega'_k \Sigma_k, \qquad
              \Sigma_{bn} = \operatorname{diag} \Sigma_{bw}, \quad \Sigma_{in} = \operatorname{diag} \Sigma_{iw}, \quad
              \Sigma_{ln} = \sigma^2_{ln} I

    Args:
        statistics: the moments; in eval mode, the population's stand for those of the batch.
        names: of ``"bw"``, ``"iw"``, ``"bn"``, ``"in"``, ``"ln"``.
        mixing: logits of ω and ω', in the order of the names.
    """
    means, covs = _list_statistics(statistics, names)
    return _sum_weighted(mixing.mean.softmax(0), means), _sum_weighted(mixing.cov.softmax(0), covs)


def mix_backward(
    statistics: Statistics,
    names: tuple[str, ...],
    mixing: Mixing,
    grad_mean: Tensor,
    grad_cov: Tensor,
    batch_is_constant: bool,
) -> tuple[AffineGrad | None, AffineGrad | None, Mixing]:
    """Return the gradients that reach x through the statistics of samples and batch, and those of the logits.

    A mean over m values adds grad/m to the gradient of each, a covariance (2/m)·grad·(x - mean), for symmetric grad.
    """
    weights = mixing.mean.softmax(0), mixing.cov.softmax(0)
    weights_of = dict(zip(names, zip(*weights, strict=True), strict=True))
    batch = None
    if not batch_is_constant:
        batch = _differentiate(grad_mean, grad_cov, weights_of, "bw", "bn", statistics.batch)
    sample = _differentiate(grad_mean, grad_cov, weights_of, "iw", "in", statistics.sample)
    if "ln" in names:
        sample = _add_layer_statistics(grad_mean, grad_cov, *weights_of["ln"], statistics.sample, sample)
    parts = _list_statistics(statistics, names)
    return sample, batch, Mixing(*map(_differentiate_weights, weights, parts, (grad_mean, grad_cov)))


def _differentiate(
    grad_mean: Tensor,
    grad_cov: Tensor,
    weights: dict[str, tuple[Tensor, Tensor]],
    full: str,
    diagonal: str,
    moments: Moments | None,
) -> AffineGrad | None:
    """Return the gradient through a covariance and its diagonal, as far as they were mixed."""
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
    matrix, offset = functools.reduce(torch.add, matrices), share * grad_mean
    if full in BATCH_STATISTICS and matrix.shape[0] != 1:
        matrix, offset = matrix.sum(0, keepdim=True), offset.sum(0, keepdim=True)
    return AffineGrad(matrix, offset, moments.mean, moments.num_values)


def _add_layer_statistics(
    grad_mean: Tensor,
    grad_cov: Tensor,
    mean_weight: Tensor,
    cov_weight: Tensor,
    moments: Moments | None,
    sample: AffineGrad | None,
) -> AffineGrad:
    """Add the gradient through mean and variance of a sample's whole layer, about the sample's own means."""
    assert moments is not None
    mean, _ = _layer_statistics(moments)
    share = 1 / (moments.mean.shape[1] * moments.mean.shape[2])
    slope = share * cov_weight * _diagonal(grad_cov).sum((1, 2), keepdim=True)  # N, 1, 1
    offset = share * mean_weight * grad_mean.sum((1, 2), keepdim=True) - 2 * slope * (mean - moments.mean)
    matrix = torch.diag_embed(slope.expand_as(moments.mean))
    if sample is not None:
        matrix, offset = sample.matrix + matrix, sample.offset + offset
    return AffineGrad(matrix, offset, moments.mean, moments.num_values)


def _list_statistics(statistics: Statistics, names: tuple[str, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the mean and the covariance of every named statistic."""
    means, covs = [], []
    for name in names:
        moments = statistics.batch if name in BATCH_STATISTICS else statistics.sample
        assert moments is not None
        mean, cov, _ = moments
        if name == "ln":
            layer_mean, variance = _layer_statistics(moments)
            mean, cov = layer_mean.expand_as(mean), torch.diag_embed(variance.expand_as(mean))
        elif name in ("bn", "in"):
            cov = torch.diag_embed(_diagonal(cov))
        means.append(mean)
        covs.append(cov)
    return means, covs


def _layer_statistics(moments: Moments) -> tuple[Tensor, Tensor]:
    """Return mean and variance ``(N, 1, 1)`` of all channels and positions of a sample."""
    mean = moments.mean.mean((1, 2), keepdim=True)
    variance = _diagonal(moments.cov) + (moments.mean - mean) ** 2
    return mean, variance.mean((1, 2), keepdim=True)


def _sum_weighted(weights: Tensor, tensors: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, [weights[i] * tensor for i, tensor in enumerate(tensors)])


def _differentiate_weights(weights: Tensor, tensors: list[Tensor], grad: Tensor) -> Tensor:
    """Return the gradient of the logits, from differences to the first tensor, which no common offset can drown."""
    inner = torch.stack([_inner_product(grad, tensor - tensors[0]) for tensor in tensors])
    return weights * (inner - (weights * inner).sum())


def _inner_product(grad: Tensor, tensor: Tensor) -> Tensor:
    return ((grad.sum(0, keepdim=True) if tensor.shape[0] == 1 else grad) * tensor).sum()


def _diagonal(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=-2, dim2=-1)
