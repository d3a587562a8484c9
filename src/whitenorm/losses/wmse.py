"""W-MSE: the distance of whitened views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whitenorm._runtime import check_floating, compute_dtype, no_autocast
from whitenorm.ops.check import check_number, check_positive, divisors
from whitenorm.solvers import SolverLike, as_solver, inverse_sqrt


class WMSELoss(nn.Module):
    r"""The mean squared distance of the views of an image, after each view's batch was whitened (W-MSE).

    .. math:: z_v = W\big((1 - \epsilon) \Sigma_v + \epsilon I\big)\, (x_v - \mu_v), \qquad
              \mathrm{loss} = \frac{2}{V (V - 1)} \sum_{u < v}
              \Big\lVert \frac{z_u}{\lVert z_u \rVert} - \frac{z_v}{\lVert z_v \rVert} \Big\rVert^2

    averaged over the images. Each term is :math:`2 - 2 \cos(z_u, z_v)`: from 0, where all views of an image agree, to
    4; unrelated views give 2. As whitened vectors are spread in all directions, embeddings that collapse to a point,
    to two points or to a line do not make the loss small, and no negatives, stopped gradients or momentum encoders are
    needed.

    That holds as long as something is left that differs from view to view: two points with noise of 1e-6 give 1.7. An
    exact collapse leaves nothing to whiten. Where all embeddings are identical, and where they are two points on which
    the views agree, the loss is 0 and so is its gradient; on a line along one feature, only the sides of the mean are
    compared. Differences below the rounding error of the embeddings' dtype count as exact collapse.

    Every view is whitened by itself, in sub-batches of ``whitening_size`` images drawn at random, the same images for
    all views, with mean and unbiased covariance of the sub-batch. The covariance gets the variance of the embeddings'
    rounding error besides ε, so that gradients stay finite. Computed in float64, also under autocast, and returned in
    float32 unless the embeddings are float64. Under several processes each whitens its own part of the batch.

    From `Whitening for Self-Supervised Representation Learning <https://arxiv.org/abs/2007.06346>`_ (Ermolov et al.,
    2021), whose settings are the defaults.

    Args:
        whitening_size: images whitened together; it must divide the batch and be larger than the number of features.
            None for twice the number of features, as in the paper.
        iterations: how many times the batch is divided anew; the loss is the mean. With larger embeddings the paper
            takes 4 for two views.
        eps: shrinks the covariance towards I; 0 in the paper. If the loss jumps, take 1e-4 or more. Directions of a
            variance far below ε hardly count, so that the loss of collapsed embeddings is small again.
        normalize: compare directions, as in the formula; False for the mean square of all entries of
            :math:`z_u - z_v`.
        solver: from covariance to matrix; see :func:`whitenorm.solvers.inverse_sqrt`.

    Shape:
        - Input: two or more views ``(N, D)``, one by one or in a list, or all in one tensor ``(V, N, D)``.
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
        x = _stacked(views)
        size = self._size(*x.shape[1:])
        with no_autocast(x):
            z = self._whitened(x, size)
            # The mean square of the difference of two views is twice the unbiased variance of all.
            loss = 2 * (_directions(z).var(0).sum(-1).mean() if self.normalize else z.var(0).mean())
        return loss.to(compute_dtype(x.dtype))

    def extra_repr(self) -> str:
        return (
            f"whitening_size={self.whitening_size}, iterations={self.iterations}, eps={self.eps}, "
            f"normalize={self.normalize}, solver={self.solver}"
        )

    def _size(self, number: int, features: int) -> int:
        """The size of the sub-batches, where it fits."""
        size = 2 * features if self.whitening_size is None else self.whitening_size
        if size <= features:
            raise ValueError(
                f"expected whitening_size larger than the {features} features (got {size}): the covariance of fewer "
                f"images is singular; take {2 * features}, as W-MSE's authors do, or a projection to fewer features"
            )
        if number == 0 or number % size:
            fitting = [divisor for divisor in divisors(number) if divisor > features] if number else []
            choice = f"whitening_size of {fitting}" if fitting else f"a batch of more than {features} images"
            raise ValueError(
                f"expected a batch that sub-batches of {size} images divide (got {number} images of {features} "
                f"features); take {choice}, and drop_last=True in the DataLoader if it is the last of an epoch"
            )
        return size

    def _whitened(self, x: Tensor, size: int) -> Tensor:
        """From views (V, N, D) to whitened ones (V, rest, D) in float64, in the same order of images in all."""
        order = permutations(self.iterations, x.shape[1], x.device)
        # In float32, the covariance of embeddings that have nearly collapsed would be rounding error.
        parts = x.double().index_select(1, order.flatten()).unflatten(1, (-1, size))  # V, parts, size, D
        centred = parts - parts.mean(-2, keepdim=True)
        cov = (1 - self.eps) * (centred.mT @ centred / (size - 1))
        ridge = self.eps + _rounding_variance(parts, x.dtype)
        identity = torch.eye(x.shape[-1], dtype=cov.dtype, device=cov.device)
        return (centred @ inverse_sqrt(cov + ridge * identity, self.solver).mT).flatten(1, 2)


def _rounding_variance(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The variance of the rounding errors of values ``(..., size, D)`` that were rounded to ``dtype``, ``(..., 1, 1)``.

    Without it, directions in which a batch does not vary would be whitened by the inverse of next to nothing. It is at
    least the smallest number of the dtype, whose inverse root is still in range.
    """
    info = torch.finfo(dtype)
    return (info.eps**2 / 12 * parts.detach().square().mean((-2, -1), keepdim=True)).clamp_min(info.eps * info.tiny)


def _directions(z: Tensor) -> Tensor:
    """Unit vectors; 0, with no gradient, for vectors that are rounding error, as those of a collapsed view are."""
    norm = z.norm(dim=-1, keepdim=True)
    return z / norm.masked_fill(norm < 1e-6, torch.inf)


def permutations(count: int, number: int, device: torch.device) -> Tensor:
    """So many random orders of the images, ``(count, number)``.

    Example::

        >>> permutations(2, 4, torch.device("cpu")).sort().values
        tensor([[0, 1, 2, 3],
                [0, 1, 2, 3]])
    """
    return torch.rand(count, number, device=device).argsort(1)


def _stacked(views: tuple[Tensor | Sequence[Tensor], ...]) -> Tensor:
    """All views as one tensor (V, N, D)."""
    if len(views) == 1 and isinstance(views[0], (list, tuple)):
        views = tuple(views[0])
    shapes = [tuple(view.shape) if isinstance(view, Tensor) else type(view).__name__ for view in views]
    expected = "expected two or more views of shape (N, D), one by one or in a list, or one tensor (V, N, D) of all"
    tensors = [view for view in views if isinstance(view, Tensor)]
    if len(tensors) < len(views):
        raise ValueError(f"{expected} (got {shapes})")
    if len(tensors) == 1 and tensors[0].ndim == 3:
        stacked = tensors[0]
    elif len(tensors) < 2 or any(view.ndim != 2 for view in tensors):
        raise ValueError(f"{expected} (got shapes {shapes}); features of images are flattened first: x.flatten(1)")
    elif len(set(shapes)) > 1:
        raise ValueError(f"{expected}, all of one shape (got {shapes}); row n is the same image in every view")
    else:
        stacked = torch.stack(tensors)
    if len(stacked) < 2:
        raise ValueError(f"{expected} (got {len(stacked)} of shape {tuple(stacked.shape[1:])}); augment images twice")
    check_floating("views", stacked)
    return stacked
