"""CW-RGP: channel whitening with random group partition."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from whitenorm._runtime import compute_dtype, no_autocast
from whitenorm.losses.views import check_share, draw_permutations, mean_distance, rounding_variance, shrink, stack_views
from whitenorm.ops.check import check_divides, check_positive, divisors
from whitenorm.solvers import SolverLike, as_solver, inverse_sqrt


class CWRGPLoss(nn.Module):
    r"""Mean squared distance of views after whitening images over random groups of features (CW-RGP).

    .. math:: z_{v, p} = W\big((1 - \epsilon)\,\tfrac{1}{d - 1} X_{v, p} X_{v, p}^T + \epsilon I\big)\, X_{v, p}, \qquad
              \mathrm{loss} = \frac{2}{V (V - 1)} \sum_{u < v}
              \Big\lVert \frac{z_u}{\lVert z_u \rVert} - \frac{z_v}{\lVert z_v \rVert} \Big\rVert^2

    averaged over the images. Channel whitening decorrelates images over their features: :math:`X_{v, p}` has a row for
    each image, with the mean of the embedding subtracted, and a column for each of the d features of part p. The parts
    are a random partition of the features into ``num_groups``, drawn anew for each view and sub-batch, so that the
    images of a batch must be decorrelated in every subset of features; :math:`z_v` consists of all parts. No number of
    images per feature is needed, so that embeddings may be large and batches small.

    Sub-batches of ``whitening_size`` images are the same for all views. The variance of the embeddings' rounding errors
    is added to ε. The loss is computed in float64, also under autocast, and returned in float32 unless the embeddings
    are float64. In distributed training, each process whitens its own images.

    From `An Investigation into Whitening Loss for Self-supervised Learning <https://arxiv.org/abs/2210.03586>`_ (Weng
    et al., 2022).

    Args:
        num_groups: number of groups of features; 1 is channel whitening without a partition.
        whitening_size: number of images whitened together; must divide the batch size and be at most the number of
            features of a group, less 1 for a single group. None: all of them.
        iterations: number of random divisions into sub-batches and groups to average over.
        eps: weight of I in the covariance.
        normalize: compare directions, as in the formula. False: the mean square of all entries of :math:`z_u - z_v`.
        solver: computes the whitening matrix; ZCA in the paper.

    Shape:
        - Input: two or more views ``(N, D)``, as separate arguments or in a list, or all in one tensor ``(V, N, D)``.
        - Output: a scalar.

    Example::

        >>> loss = CWRGPLoss(num_groups=4)
        >>> one, other = torch.randn(2, 32, 256)
        >>> loss(one, one + 0.1 * other) < loss(one, other)
        tensor(True)
    """

    def __init__(
        self,
        num_groups: int = 2,
        whitening_size: int | None = None,
        iterations: int = 1,
        eps: float = 0.0,
        *,
        normalize: bool = True,
        solver: SolverLike = "zca",
    ) -> None:
        super().__init__()
        check_positive("num_groups", num_groups)
        if whitening_size is not None:
            check_positive("whitening_size", whitening_size)
        check_positive("iterations", iterations)
        check_share(eps)
        self.num_groups = num_groups
        self.whitening_size = whitening_size
        self.iterations = iterations
        self.eps = eps
        self.normalize = normalize
        self.solver = as_solver(solver)

    def forward(self, *views: Tensor | Sequence[Tensor]) -> Tensor:
        x = stack_views(views)
        size = self._sub_batch_size(*x.shape[1:])
        with no_autocast(x):
            loss = mean_distance(self._whiten(x, size), self.normalize)
        return loss.to(compute_dtype(x.dtype))

    def extra_repr(self) -> str:
        return (
            f"num_groups={self.num_groups}, whitening_size={self.whitening_size}, iterations={self.iterations}, "
            f"eps={self.eps}, normalize={self.normalize}, solver={self.solver}"
        )

    def _sub_batch_size(self, num_images: int, num_features: int) -> int:
        """Return the size of the sub-batches, or raise if it does not fit the batch."""
        check_divides("num_groups", self.num_groups, "features", num_features)
        size = num_images if self.whitening_size is None else self.whitening_size
        # With all features in one group, subtracting their mean takes one dimension.
        most = num_features // self.num_groups - (self.num_groups == 1)
        if size > most:
            raise ValueError(
                f"expected to whiten at most {most} images together (got {size}), the number of features of a group"
                f"{', less 1' if self.num_groups == 1 else ''}: the covariance of more is singular; use fewer groups, "
                "a smaller whitening_size or a larger embedding"
            )
        if num_images == 0 or num_images % size:
            raise ValueError(
                f"expected a batch that sub-batches of {size} images divide (got {num_images} images); use "
                f"whitening_size of {[d for d in divisors(num_images) if d <= most] if num_images else 'None'}, and "
                "drop_last=True in the DataLoader if it is the last of an epoch"
            )
        return size

    def _whiten(self, x: Tensor, size: int) -> Tensor:
        """Return views (V, N, D) whitened in float64, as (V, iterations·N, D) with the same order of images in all."""
        images = draw_permutations(self.iterations, x.shape[1], x.device)
        parts = x.double().index_select(1, images.flatten()).unflatten(1, (-1, size))  # V, parts, size, D
        features = draw_permutations(parts.shape[0] * parts.shape[1], x.shape[2], x.device)
        features = features.view(*parts.shape[:2], 1, -1).expand_as(parts)
        centred = parts - parts.mean(-1, keepdim=True)
        groups = centred.gather(-1, features).unflatten(-1, (self.num_groups, -1)).transpose(-2, -3)
        cov = groups @ groups.mT / (groups.shape[-1] - 1)  # V, parts, groups, size, size
        rounding = rounding_variance(parts.square().mean((-2, -1)), x.dtype)[..., None, None, None]
        white = inverse_sqrt(shrink(cov, self.eps, rounding), self.solver) @ groups
        white = white.transpose(-2, -3).flatten(-2)
        return white.gather(-1, features.argsort(-1)).flatten(1, 2)
