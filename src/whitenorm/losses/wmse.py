"""W-MSE: mean squared distance of whitened views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whitenorm._runtime import check_floating, compute_dtype, no_autocast
from whitenorm.ops.check import check_number, check_positive, divisors
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
    float32 unless the embeddings are float64. In distributed training, each process whitens its own part of the batch.

    From `Whitening for Self-Supervised Representation Learning <https://arxiv.org/abs/2007.06346>`_ (Ermolov et al.,
    2021), whose settings are the defaults.

    Args:
        whitening_size: number of images whitened together; must divide the batch size and be larger than the number of
            features. None: twice the number of features, as in the paper.
        iterations: number of random divisions into sub-batches to average over. For two views with larger embeddings
            the paper uses 4.
        eps: weight of I in the covariance; 0 in the paper. Use 1e-4 or more if the loss jumps. Directions with a
            variance far below ε hardly count, so that collapsed embeddings have a small loss again.
        normalize: compare directions, as in the formula. False: the mean square of all entries of :math:`z_u - z_v`.
        solver: computes the whitening matrix; see :func:`whitenorm.solvers.inverse_sqrt`.

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
    ) -> None:
        super().__init__()
        if whitening_size is not None:
            check_positive("whitening_size", whitening_size)
        check_positive("iterations", iterations)
        check_number("eps", eps, 0, 1, "it is the share of I in the covariance; W-MSE's authors use 0")
        self.whitening_size = whitening_size
        self.iterations = iterations
        self.eps = eps
        self.normalize = normalize
        self.solver = as_solver(solver)

    def forward(self, *views: Tensor | Sequence[Tensor]) -> Tensor:
        x = _stack_views(views)
        size = self._sub_batch_size(*x.shape[1:])
        with no_autocast(x):
            z = self._whiten(x, size)
            # The mean squared distance of two views is twice the unbiased variance over all views.
            loss = 2 * (_unit_vectors(z).var(0).sum(-1).mean() if self.normalize else z.var(0).mean())
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
        order = draw_permutations(self.iterations, x.shape[1], x.device)
        # In float32, the covariance of nearly collapsed embeddings would be rounding error.
        parts = x.double().index_select(1, order.flatten()).unflatten(1, (-1, size))  # V, parts, size, D
        centred = parts - parts.mean(-2, keepdim=True)
        cov = (1 - self.eps) * (centred.mT @ centred / (size - 1))
        ridge = self.eps + _rounding_variance(parts, x.dtype)
        identity = torch.eye(x.shape[-1], dtype=cov.dtype, device=cov.device)
        return (centred @ inverse_sqrt(cov + ridge * identity, self.solver).mT).flatten(1, 2)


def _rounding_variance(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the variance ``(..., 1, 1)`` of the errors of rounding values ``(..., size, D)`` to ``dtype``.

    It keeps the inverse root finite in directions in which a batch does not vary. It is at least the smallest number
    of the dtype whose inverse root is in range.
    """
    info = torch.finfo(dtype)
    return (info.eps**2 / 12 * parts.detach().square().mean((-2, -1), keepdim=True)).clamp_min(info.eps * info.tiny)


def _unit_vectors(z: Tensor) -> Tensor:
    """Return z divided by its norm; 0 without a gradient where z is rounding error, as for a collapsed view."""
    norm = z.norm(dim=-1, keepdim=True)
    return z / norm.masked_fill(norm < 1e-6, torch.inf)


def draw_permutations(num_permutations: int, num_images: int, device: torch.device) -> Tensor:
    """Return random orders of the images, ``(num_permutations, num_images)``.

    Example::

        >>> draw_permutations(2, 4, torch.device("cpu")).sort().values
        tensor([[0, 1, 2, 3],
                [0, 1, 2, 3]])
    """
    return torch.rand(num_permutations, num_images, device=device).argsort(1)


def _stack_views(views: tuple[Tensor | Sequence[Tensor], ...]) -> Tensor:
    """Return all views as one tensor (V, N, D), or raise."""
    if len(views) == 1 and isinstance(views[0], (list, tuple)):
        views = tuple(views[0])
    shapes = [tuple(view.shape) if isinstance(view, Tensor) else type(view).__name__ for view in views]
    expected = (
        "expected two or more views of shape (N, D), as separate arguments or in a list, or one tensor (V, N, D) of all"
    )
    tensors = [view for view in views if isinstance(view, Tensor)]
    if len(tensors) < len(views):
        raise ValueError(f"{expected} (got {shapes})")
    if len(tensors) == 1 and tensors[0].ndim == 3:
        stacked = tensors[0]
    elif len(tensors) < 2 or any(view.ndim != 2 for view in tensors):
        raise ValueError(f"{expected} (got shapes {shapes}); flatten features of images first: x.flatten(1)")
    elif len(set(shapes)) > 1:
        raise ValueError(f"{expected}, all of one shape (got {shapes}); row n must be the same image in every view")
    else:
        stacked = torch.stack(tensors)
    if len(stacked) < 2:
        raise ValueError(f"{expected} (got {len(stacked)} of shape {tuple(stacked.shape[1:])}); augment images twice")
    check_floating("views", stacked)
    return stacked
