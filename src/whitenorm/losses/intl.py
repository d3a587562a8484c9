"""INTL: iterative normalization with a trace loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from whitenorm._runtime import compute_dtype, no_autocast
from whitenorm.losses.views import check_share, mean_distance, rounding_variance, shrink, stack_views
from whitenorm.ops.check import check_number
from whitenorm.ops.distributed import Group, GroupHandle, gather_rows, sum_over_ranks, world_size
from whitenorm.solvers import Newton, inverse_sqrt

_WHITENED = ("instances", "features")


class INTLLoss(nn.Module):
    r"""Mean squared distance of views after iterative normalization, with a loss of its trace (INTL).

    .. math:: z_v = W_T(\Sigma_v)\, (x_v - \mu_v), \qquad
              \mathrm{loss} = \frac{2}{V (V - 1)} \sum_{u < v} \Big(
              \Big\lVert \frac{z_u}{\lVert z_u \rVert} - \frac{z_v}{\lVert z_v \rVert} \Big\rVert^2
              + \beta\, t_u + \beta\, t_v \Big), \qquad
              t_v = \sum_j \big(1 - (W_T \Sigma_v W_T^T)_{jj}\big)^2

    where the squared distance is averaged over the images and :math:`W_T` is Newton's iteration with T steps. A few
    steps leave directions of small variance below unit variance. The trace loss is 0 only if every diagonal entry of
    the normalized covariance is 1, which for this iteration means that all eigenvalues are equal.

    With ``whitened="features"``, the D features are whitened over the images, :math:`\Sigma_v` is D×D, and the batch
    should have more images than features. With ``whitened="instances"``, the images are whitened over their features
    (channel whitening): :math:`\Sigma_v` is the N×N covariance of images, :math:`\mu_v` is the mean of each embedding,
    and embeddings should have more features than the batch has images.

    The loss is computed in float64, also under autocast, and returned in float32 unless the embeddings are float64.
    From `Modulate Your Spectrum in Self-Supervised Learning <https://arxiv.org/abs/2305.16789>`_ (Weng et al., 2024),
    whose authors' settings are the defaults.

    Args:
        whitened: ``"instances"`` or ``"features"``.
        steps: T.
        trace_weight: β. None: 0.01·(log₂ K - 3), where K is the size of the covariance, but at least 0.
        eps: weight of I in the covariance; 0 in the paper.
        process_group: the ranks whose images are whitened together; each must have the same number of images. The mean
            of the ranks' losses is then the loss of the joint batch, and gradients averaged by DDP are its gradients.

    Shape:
        - Input: two or more views ``(N, D)``, as separate arguments or in a list, or all in one tensor ``(V, N, D)``.
        - Output: a scalar.

    Example::

        >>> loss = INTLLoss()
        >>> one, other = torch.randn(2, 32, 256)
        >>> loss(one, one + 0.1 * other) < loss(one, other)
        tensor(True)
    """

    def __init__(
        self,
        whitened: str = "instances",
        steps: int = 4,
        trace_weight: float | None = None,
        eps: float = 0.0,
        *,
        process_group: Group = None,
    ) -> None:
        super().__init__()
        if whitened not in _WHITENED:
            raise ValueError(f'expected whitened to be "instances" or "features" (got {whitened!r})')
        if trace_weight is not None:
            check_number("trace_weight", trace_weight, 0, math.inf, "None uses the authors' choice")
        check_share(eps)
        self.whitened = whitened
        self.solver = Newton(steps)
        self.trace_weight = trace_weight
        self.eps = eps
        self._ranks = GroupHandle(process_group)

    def forward(self, *views: Tensor | Sequence[Tensor]) -> Tensor:
        x = stack_views(views)
        self._check_sizes(x)
        with no_autocast(x):
            z, traces = self._whiten_instances(x) if self.whitened == "instances" else self._whiten_features(x)
            # Each of the pairs has two of the views.
            loss = mean_distance(z) + 2 * self._trace_weight(traces.shape[1]) * (1 - traces).square().sum(1).mean()
        return loss.to(compute_dtype(x.dtype))

    def _check_sizes(self, x: Tensor) -> None:
        name, size = ("features", x.shape[2]) if self.whitened == "instances" else ("images", x.shape[1])
        total = size if self.whitened == "instances" else size * world_size(self._ranks.group)
        if x.shape[1] == 0 or total < 2:
            raise ValueError(f"expected at least 2 {name}, and images, to whiten (got views of {tuple(x.shape[1:])})")

    def _trace_weight(self, size: int) -> float:
        if self.trace_weight is not None:
            return self.trace_weight
        return max(0.0, 0.01 * (math.log2(size) - 3))

    def _whiten_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return whitened views (V, N, D), and the diagonals (V, D) of their covariances over all ranks."""
        group = self._ranks.group
        wide, count = x.double(), x.shape[1] * world_size(group)
        mean = sum_over_ranks(wide.sum(1, keepdim=True), group) / count
        centred = wide - mean
        cov = sum_over_ranks(centred.mT @ centred, group) / (count - 1)
        whitening = self._solve(cov, mean.square().mean((1, 2)), x)
        return centred @ whitening.mT, _diagonal(whitening, cov)

    def _whiten_instances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return whitened views (V, N, D) of this rank, and the diagonals of the covariances of all ranks' images."""
        rows, mine = gather_rows(x.double(), self._ranks.group)
        mean = rows.mean(2, keepdim=True)
        centred = rows - mean
        cov = centred @ centred.mT / (x.shape[2] - 1)
        whitening = self._solve(cov, mean.square().mean((1, 2)), x)
        return (whitening @ centred)[:, mine], _diagonal(whitening, cov)

    def _solve(self, cov: Tensor, mean_square: Tensor, x: Tensor) -> Tensor:
        mean_square = mean_square + cov.diagonal(dim1=-2, dim2=-1).mean(-1)
        rounding = rounding_variance(mean_square, x.dtype)[:, None, None]
        return inverse_sqrt(shrink(cov, self.eps, rounding), self.solver)

    def extra_repr(self) -> str:
        return (
            f"whitened={self.whitened!r}, steps={self.solver.steps}, trace_weight={self.trace_weight}, eps={self.eps}"
        )


def _diagonal(whitening: Tensor, cov: Tensor) -> Tensor:
    """Return the diagonals of WΣWᵀ."""
    return (whitening @ cov * whitening).sum(-1)
