"""ISW: instance selective whitening of feature maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whitenorm._runtime import check_floating, compute_dtype, no_autocast
from whitenorm.ops.check import check_channels, check_eps, check_positions, check_positive
from whitenorm.ops.distributed import Group, GroupHandle, sum_over_ranks

_ROUNDS = 100


class InstanceSelectiveWhiteningLoss(nn.Module):
    r"""Mean absolute covariance of the pairs of channels that carry style, within each image (ISW of RobustNet).

    .. math:: \mathrm{loss} = \frac1N \sum_n \frac{\sum_{i<j} M_{ij}\, \lvert \Sigma_n \rvert_{ij}}{\sum_{i<j} M_{ij}},
              \qquad \Sigma_n = \tfrac{1}{HW} X_n X_n^T

    where :math:`X_n` are the channels of image n, standardized over its positions. The mask M selects the pairs of
    channels whose covariance changes most when an image is augmented: :meth:`observe` measures the variance of each
    entry of Σ over the views of an image, averaged over the images, and :meth:`select_` divides the variances into
    ``num_clusters`` by k-means, of which all but the ``num_kept`` smallest are selected. Until then, all pairs are
    selected, which is the paper's loss without selection (IW).

    Train for some epochs without this loss, call :meth:`observe` on the features of original and augmented images, call
    :meth:`select_`, and add the loss to the task's from then on; the paper's weight is 0.6, for each of the layers with
    a loss of its own. Its networks have InstanceNorm at these places.

    From `RobustNet: Improving Domain Generalization in Urban-Scene Segmentation via Instance Selective Whitening
    <https://arxiv.org/abs/2103.15597>`_ (Choi et al., 2021).

    Args:
        num_features: C.
        num_clusters: number of clusters of the variances.
        num_kept: number of clusters, from the one of smallest variance, whose pairs are not penalized.
        eps: added to the variance of each channel.
        process_group: the ranks whose observations :meth:`select_` combines.

    Shape:
        - Input: feature maps ``(N, C, ...)`` with at least 2 positions; several, of any sizes, are averaged.
        - Output: a scalar.

    Example::

        >>> loss = InstanceSelectiveWhiteningLoss(16)
        >>> features = torch.randn(4, 16, 8, 8)
        >>> loss.observe(features, features + 0.5 * torch.randn(4, 16, 8, 8))
        >>> loss.select_().mask.sum() < 16 * 15 / 2
        tensor(True)
        >>> loss(features).shape
        torch.Size([])
    """

    mask: Tensor
    variance: Tensor
    num_images: Tensor

    def __init__(
        self,
        num_features: int,
        num_clusters: int = 3,
        num_kept: int = 1,
        eps: float = 1e-5,
        *,
        process_group: Group = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        check_positive("num_features", num_features)
        check_positive("num_clusters", num_clusters)
        if isinstance(num_kept, bool) or not isinstance(num_kept, int) or not 0 <= num_kept < num_clusters:
            raise ValueError(f"expected num_kept from 0 to num_clusters - 1 = {num_clusters - 1} (got {num_kept!r})")
        check_eps(eps)
        self.num_features = num_features
        self.num_clusters = num_clusters
        self.num_kept = num_kept
        self.eps = eps
        self._ranks = GroupHandle(process_group)
        pairs = torch.ones(num_features, num_features, dtype=torch.bool, device=device).triu(1)
        self.register_buffer("mask", pairs)
        self.register_buffer("variance", torch.zeros(num_features, num_features, device=device))
        self.register_buffer("num_images", torch.zeros((), dtype=torch.long, device=device))

    def forward(self, *features: Tensor) -> Tensor:
        if not features:
            raise ValueError("expected one or more feature maps (N, C, ...) (got none)")
        covs = torch.cat([self._covariance(x) for x in features])
        mask = self.mask.to(covs.dtype)
        return (covs.abs() * mask).sum((-2, -1)).mean() / mask.sum().clamp(min=1)

    @torch.no_grad()
    def observe(self, *views: Tensor) -> None:
        """Record how the covariances of images differ between two or more views ``(N, C, ...)``, in the same order."""
        if len(views) < 2 or len({len(view) for view in views}) > 1:
            raise ValueError(
                "expected two or more views of the same images: the features of original and augmented images "
                f"(got {[tuple(view.shape) for view in views]})"
            )
        variance = torch.stack([self._covariance(view) for view in views]).var(0, correction=0)
        self.num_images += len(variance)
        # A running mean over all images.
        self.variance += (variance - self.variance).sum(0) / self.num_images.clamp(min=1)

    @torch.no_grad()
    def select_(self) -> InstanceSelectiveWhiteningLoss:
        """Choose the pairs to penalize from the variances observed so far, over all ranks, and return the loss."""
        group, count = self._ranks.group, self.num_images.double()
        total = sum_over_ranks(count, group)
        if total == 0:
            raise ValueError("expected observed views before a selection (got none); call observe first")
        variance = sum_over_ranks(count * self.variance.double(), group) / total
        pairs = torch.ones_like(self.mask).triu(1)
        clusters = _cluster(variance[pairs], self.num_clusters)
        self.mask.zero_()
        self.mask[pairs] = clusters >= self.num_kept
        return self

    def _covariance(self, x: Tensor) -> Tensor:
        """Return the covariances ``(N, C, C)`` of standardized channels."""
        check_floating("features", x)
        check_channels(x, self.num_features)
        check_positions(x, "channel", x[0, 0].numel() if len(x) else 2)
        with no_autocast(x):
            wide = x.flatten(2).to(compute_dtype(x.dtype))
            centred = wide - wide.mean(-1, keepdim=True)
            cov = centred @ centred.mT / wide.shape[-1]
            scale = (cov.diagonal(dim1=-2, dim2=-1) + self.eps).rsqrt()
            return cov * scale.unsqueeze(-1) * scale.unsqueeze(-2)

    def extra_repr(self) -> str:
        return f"{self.num_features}, num_clusters={self.num_clusters}, num_kept={self.num_kept}, eps={self.eps}"


def _cluster(values: Tensor, num_clusters: int) -> Tensor:
    """Return the index of the cluster of each value by k-means, from small values to large ones.

    Lloyd's iteration from equally populated clusters; an empty cluster keeps its centre.

    Example::

        >>> _cluster(torch.tensor([5.0, 0.1, 0.2, 5.1, 9.0, 9.1]), 3)
        tensor([1, 0, 0, 1, 2, 2])
    """
    positions = (torch.arange(num_clusters, device=values.device) + 0.5) / num_clusters
    centres = values.sort().values[(positions * len(values)).long()] if len(values) else positions
    clusters = torch.full_like(values, -1, dtype=torch.long)
    for _ in range(_ROUNDS):
        previous, clusters = clusters, torch.bucketize(values, (centres[1:] + centres[:-1]) / 2)
        if torch.equal(clusters, previous):
            break
        counts = torch.bincount(clusters, minlength=num_clusters)
        sums = torch.zeros_like(centres).index_add(0, clusters, values)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return clusters
