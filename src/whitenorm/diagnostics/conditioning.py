"""Conditioning and correlation of features."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from whitenorm.ops.check import check_number
from whitenorm.ops.statistics import channel_moments


def spectrum(x: Tensor) -> Tensor:
    """Return the eigenvalues of the features' covariance, largest first and none below zero."""
    return eigenvalues(covariance(flatten_features(x)))


def condition_number(x: Tensor, percent: float = 100, *, live: bool = False) -> float:
    r"""Return the condition number of the features' covariance, or of a share of its directions (GW, figure 2).

    .. math:: \kappa = \frac{\lambda_{max}}{\lambda_{min}}, \qquad
              \kappa_p = \frac{\lambda_{max}}{\lambda_{\lceil p d \rceil}}

    with eigenvalues from the largest. It is infinite for features that are singular to float64's precision. A share
    below 100 % ignores the directions that vary least; ``live`` ignores all dead directions.

    Args:
        x: ``(N, C)`` or ``(N, C, ...)``.
        percent: p, above 0 up to 100.
        live: count only the d directions that are not dead (:func:`dead_directions`); NaN if all are dead.

    Example::

        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> condition_number(x)
        4.0
        >>> twice = torch.cat([x, x], 1)
        >>> condition_number(twice), condition_number(twice, live=True)
        (inf, 4.0)
    """
    check_number("percent", percent, 1e-9, 100, "it is a share of the directions; the paper uses 80 and 90")
    rows = flatten_features(x)
    values = eigenvalues(covariance(rows)).tolist()
    num_dead = count_dead(values, rounding_variance(rows, x.dtype)) if live else 0
    return eigenvalue_ratio(values, percent, num_dead)


def dead_directions(x: Tensor) -> int:
    r"""Return the number of directions in which features vary by rounding errors only.

    A direction is dead where there are fewer values than features (n values span n - 1 directions), after a norm that
    removes it (LayerNorm's output has mean zero in every sample), after a narrower layer, or where a channel is
    constant. Its eigenvalue, zero in exact arithmetic, is at most :math:`\varepsilon^{3/2}` times the features' mean
    square here, with the :math:`\varepsilon` of their dtype; a single rounding contributes :math:`\varepsilon^2`.

    Example::

        >>> x = torch.randn(100, 8)
        >>> dead_directions(x), dead_directions(nn.LayerNorm(8)(x)), dead_directions(x[:4])
        (0, 1, 5)
    """
    rows = flatten_features(x)
    return count_dead(eigenvalues(covariance(rows)).tolist(), rounding_variance(rows, x.dtype))


def correlation(x: Tensor) -> float:
    r"""Return the mean absolute correlation of two different features.

    .. math:: \frac{1}{d(d-1)} \sum_{i \ne j} \frac{|\Sigma_{ij}|}{\sqrt{\Sigma_{ii} \Sigma_{jj}}}

    Constant features count as uncorrelated with all others.

    Example::

        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
        >>> round(correlation(x), 6)
        1.0
    """
    return mean_correlation(correlation_matrix(covariance(flatten_features(x))))


def whiteness_error(x: Tensor) -> float:
    r"""Return the distance of the covariance from the identity, :math:`\lVert \Sigma - I \rVert_F / \sqrt d`.

    Example::

        >>> x = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        >>> whiteness_error(x)
        0.0
    """
    cov = covariance(flatten_features(x))
    identity = torch.eye(len(cov), dtype=cov.dtype, device=cov.device)
    return (torch.linalg.matrix_norm(cov - identity) / math.sqrt(len(cov))).item()


def flatten_features(x: Tensor, min_rows: int = 2) -> Tensor:
    """Return features ``(N, C, ...)`` as finite rows ``(N·positions, C)`` in float64, or raise."""
    if x.ndim < 2 or not x.is_floating_point():
        raise ValueError(
            f"expected floating-point features (N, C) or (N, C, ...) (got {x.dtype} of shape {tuple(x.shape)})"
        )
    rows = x.detach().movedim(1, -1).reshape(-1, x.shape[1]).double()
    if len(rows) < min_rows:
        raise ValueError(
            f"expected at least {min_rows} values of each feature (got {len(rows)} in input of shape "
            f"{tuple(x.shape)}); one value has no covariance"
        )
    num_bad = int((~rows.isfinite()).any(1).sum())
    if num_bad:
        raise ValueError(
            f"expected finite features (got NaN or infinity in {num_bad} of {len(rows)} rows); look for a diverged "
            "loss or a division by zero before this layer"
        )
    return rows


def covariance(rows: Tensor) -> Tensor:
    """Return the biased covariance ``(C, C)`` of rows ``(R, C)`` in float64; zero for constant features."""
    with torch.no_grad():
        cov = channel_moments(rows, rows.shape[1]).cov.reshape(rows.shape[1], rows.shape[1])
        # A constant feature has a variance of the size of its rounding errors.
        is_constant = cov.diagonal() <= (4 * sys.float_info.epsilon * rows.mean(0)).square()
        return cov.masked_fill(is_constant | is_constant[:, None], 0)


def eigenvalues(cov: Tensor) -> Tensor:
    """Return the eigenvalues of a covariance, largest first and none below zero."""
    return torch.linalg.eigvalsh(cov).flip(0).clamp_min(0)


def eigenvalue_ratio(values: list[float], percent: float = 100, num_dead: int = 0) -> float:
    """Return the condition number of eigenvalues, largest first, without the dead ones at their end."""
    live = values[: len(values) - num_dead]
    if not live:
        return math.nan
    smallest = live[math.ceil(percent * len(live) / 100) - 1]
    return math.inf if smallest <= _negligible(values) else values[0] / smallest


def count_dead(values: list[float], rounding: float) -> int:
    """Return how many eigenvalues, largest first, are due to rounding of the features or of the eigenvalues."""
    threshold = max(rounding, _negligible(values))
    return sum(value <= threshold for value in values)


def rounding_variance(rows: Tensor, dtype: torch.dtype) -> float:
    """Return the largest variance that rounding to ``dtype`` may cause in a direction."""
    return torch.finfo(dtype).eps ** 1.5 * rows.square().mean().item()


def _negligible(values: list[float]) -> float:
    """Return the size of the rounding errors of eigenvalues, largest first, in float64."""
    return values[0] * len(values) * sys.float_info.epsilon


def correlation_matrix(cov: Tensor) -> Tensor:
    """Return the correlation matrix ``(C, C)`` of a covariance, with zeros for constant features."""
    scale = cov.diagonal().sqrt()
    return (cov / (scale[:, None] * scale[None, :])).nan_to_num(0)


def mean_correlation(matrix: Tensor) -> float:
    """Return the mean absolute value of a correlation matrix off its diagonal."""
    size = len(matrix)
    if size == 1:
        return 0.0
    matrix = matrix.abs()
    return ((matrix.sum() - matrix.diagonal().sum()) / (size * (size - 1))).item()
