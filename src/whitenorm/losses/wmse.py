"""W-MSE: mean squared distance of whitened views."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from whitenorm._runtime import compute_dtype, no_autocast
from whitenorm.losses.views import check_share, draw_permutations, mean_distance, rounding_variance, shrink, stack_views
from whitenorm.ops.check import check_positive, divisors
from whitenorm.ops.distributed import Group, GroupHandle, sum_over_ranks, world_size
from whitenorm.solvers import SolverLike, as_solver, inverse_sqrt


class WMSELoss(nn.Module):
    r"""Mean squared distance of the views of an image, after whitening each view over its batch (W-MSE).

    .. math:: z_v = W\big((1 - \epsilon) \Sigma_v + \epsilon I\big)\, (x_v - \mu_v), \qquad
              \mathrm{loss} = \frac{2}{V (V - 1)} \sum_{u < v}
              \Big\lVert \frac{z_u}{\lVert z_u \rVert} - \frac{z_v}{\lVert z_v \rVert} \Big\rVert^2

    averaged over the images. Each term is :math:`2 - 2 \cos(z_u, z_v)`, from 0, where all views of an image agree, to
    4; unrelated views give 2. Because whitened vectors spread in all directions, embeddings that collapse to a point,
    to two points or to a line do not have a small loss. Negatives, stopped gradients or momentum encoders are not
    needed.

    This holds as long as the views differ at all: two points with noise of 1e-6 have a loss of 1.7. An exact collapse
    leaves nothing to whiten: if all embeddings are identical, or are two points on which the views agree, the loss and
    its gradient are 0; for embeddings on a line along one feature, the loss only compares on which side of the mean
    they are. Differences below the rounding error of the embeddings' dtype count as exact collapse.

    Each view is whitened separately, in random sub-batches of ``whitening_size`` images that are the same for all
    views, by the mean and the unbiased covariance of the sub-batch. The variance of the embeddings' rounding errors is
    added to ε, so that gradients stay finite. The loss is computed in float64, also under autocast, and returned in
    float32 unless the embeddings are float64.

    In distributed training, each process whitens its own part of the batch, or, with ``process_group``, sub-batches
    that consist of equal parts of all ranks' batches. The mean of the ranks' losses is then the loss of the joint
    batch, and gradients averaged by DDP are its gradients.

    From `Whitening for Self-Supervised Representation Learning <https://arxiv.org/abs/2007.06346>`_ (Ermolov et al.,
    2021), whose settings are the defaults.

    Args:
        whitening_size: number of images whitened together, over all ranks of ``process_group``; must divide the batch
            size and be larger than the number of features. None: twice the number of features, as in the paper.
        iterations: number of random divisions into sub-batches to average over. For two views with larger embeddings
            the paper uses 4.
        eps: weight of I in the covariance; 0 in the paper. Use 1e-4 or more if the loss jumps. Directions with a
            variance far below ε hardly count, so that collapsed embeddings have a small loss again.
        normalize: compare directions, as in the formula. False: the mean square of all entries of :math:`z_u - z_v`.
        solver: computes the whitening matrix; see :func:`whitenorm.solvers.inverse_sqrt`.
        process_group: the ranks whose images are whitened together; each must have the same number of images.

    Shape:
        - Input: two or more views ``(N, D)``, as separate arguments or in a list, or all in one tensor ``(V, N, D)``.
        - Output: a scalar.

    Example::

        >>> loss = WMSELoss()
        >>> one, other = torch.randn(2, 128, 16)
        >>> loss(one, one + 0.1 * other) < loss(one, other)
        tensor(True)
        >>> loss(torch.stack([one, other, one + other])).shape
        torch.Size([])
    """

    def __init__(
        self,
        whitening_size: int | None = None,
        iterations: int = 1,
        eps: float = 0.0,
        *,
        normalize: bool = True,
        solver: SolverLike = "cholesky",
        process_group: Group = None,
    ) -> None:
        super().__init__()
        if whitening_size is not None:
            check_positive("whitening_size", whitening_size)
        check_positive("iterations", iterations)
        check_share(eps)
        self.whitening_size = whitening_size
        self.iterations = iterations
        self.eps = eps
        self.normalize = normalize
        self.solver = as_solver(solver)
        self._ranks = GroupHandle(process_group)

    def forward(self, *views: Tensor | Sequence[Tensor]) -> Tensor:
        x = stack_views(views)
        num_images = x.shape[1] * world_size(self._ranks.group)
        size = self._sub_batch_size(num_images, x.shape[2])
        with no_autocast(x):
            loss = mean_distance(self._whiten(x, size), self.normalize)
        return loss.to(compute_dtype(x.dtype))

    def extra_repr(self) -> str:
        return (
            f"whitening_size={self.whitening_size}, iterations={self.iterations}, eps={self.eps}, "
            f"normalize={self.normalize}, solver={self.solver}"
        )

    def _sub_batch_size(self, num_images: int, num_features: int) -> int:
        """Return the size of the sub-batches, or raise if it does not fit the batch."""
        size = 2 * num_features if self.whitening_size is None else self.whitening_size
        if size <= num_features:
            raise ValueError(
                f"expected whitening_size larger than the {num_features} features (got {size}): the covariance of "
                f"fewer images is singular; use {2 * num_features}, as W-MSE's authors do, or project to fewer features"
            )
        ranks = world_size(self._ranks.group)
        if size % ranks:
            raise ValueError(
                f"expected whitening_size to be a multiple of the {ranks} ranks (got {size}): each rank has an equal "
                "part of a sub-batch"
            )
        if num_images == 0 or num_images % size:
            sizes = [divisor for divisor in divisors(num_images) if divisor > num_features] if num_images else []
            choice = f"whitening_size of {sizes}" if sizes else f"a batch of more than {num_features} images"
            raise ValueError(
                f"expected a batch that sub-batches of {size} images divide (got {num_images} images of {num_features} "
                f"features); use {choice}, and drop_last=True in the DataLoader if it is the last of an epoch"
            )
        return size

    def _whiten(self, x: Tensor, size: int) -> Tensor:
        """Return views (V, N, D) whitened in float64, as (V, iterations·N, D) with the same order of images in all."""
        group = self._ranks.group
        order = draw_permutations(self.iterations, x.shape[1], x.device)
        # In float32, the covariance of nearly collapsed embeddings would be rounding error.
        parts = x.double().index_select(1, order.flatten())
        parts = parts.unflatten(1, (-1, size // world_size(group)))  # V, parts, size on this rank, D
        mean = sum_over_ranks(parts.sum(-2, keepdim=True), group) / size
        centred = parts - mean
        cov = sum_over_ranks(centred.mT @ centred, group) / (size - 1)
        variances = (size - 1) / size * cov.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        rounding = rounding_variance((mean.square() + variances).mean(-1, keepdim=True), x.dtype)
        return (centred @ inverse_sqrt(shrink(cov, self.eps, rounding), self.solver).mT).flatten(1, 2)
