"""Helpers of the losses that compare views of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whitenorm._runtime import check_floating
from whitenorm.ops.check import check_number


def stack_views(views: tuple[Tensor | Sequence[Tensor], ...]) -> Tensor:
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


def check_share(eps: float) -> None:
    """Raise unless ε can be the share of I in a covariance."""
    check_number("eps", eps, 0, 1, "it is the share of I in the covariance; the papers' authors use 0")


def shrink(cov: Tensor, eps: float, rounding: Tensor) -> Tensor:
    """Return (1 - ε)Σ + (ε + rounding)·I of covariances ``(..., K, K)``, with the rounding errors' variance."""
    identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
    return (1 - eps) * cov + (eps + rounding) * identity


def rounding_variance(mean_square: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the variance of the errors of rounding values with this mean square to ``dtype``.

    It keeps the inverse root finite in directions in which a batch does not vary. It is at least the smallest number
    of the dtype whose inverse root is in range.
    """
    info = torch.finfo(dtype)
    return (info.eps**2 / 12 * mean_square.detach()).clamp_min(info.eps * info.tiny)


def mean_distance(z: Tensor, normalize: bool = True) -> Tensor:
    """Return the mean squared distance of two views in ``(V, N, D)``, of unit vectors or per entry.

    It is twice the unbiased variance over all views.

    Example::

        >>> mean_distance(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]))
        tensor(2.)
    """
    return 2 * (_unit_vectors(z).var(0).sum(-1).mean() if normalize else z.var(0).mean())


def _unit_vectors(z: Tensor) -> Tensor:
    """Return z divided by its norm; 0 without a gradient where z is rounding error, as for a collapsed view."""
    norm = z.norm(dim=-1, keepdim=True)
    return z / norm.masked_fill(norm < 1e-6, torch.inf)


def draw_permutations(num_permutations: int, size: int, device: torch.device) -> Tensor:
    """Return random orders of ``size`` items, ``(num_permutations, size)``.

    Example::

        >>> draw_permutations(2, 4, torch.device("cpu")).sort().values
        tensor([[0, 1, 2, 3],
                [0, 1, 2, 3]])
    """
    return torch.rand(num_permutations, size, device=device).argsort(1)
