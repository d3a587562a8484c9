"""How well-conditioned and how decorrelated features are."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from whitenorm.ops.check import check_number
from whitenorm.ops.statistics import channel_moments


def features_of(x: Tensor, least: int = 2) -> Tensor:
    """Features ``(N, C, ...)`` as ``(N·positions, C)`` in float64; an error for what has no covariance."""
    if x.ndim < 2 or not x.is_floating_point():
        raise ValueError(
            f"expected floating-point features (N, C) or (N, C, ...) (got {x.dtype} of shape {tuple(x.shape)})"
        )
    rows = x.detach().movedim(1, -1).reshape(-1, x.shape[1]).double()
    if len(rows) < least:
        raise ValueError(
            f"expected at least {least} values of each feature (got {len(rows)} in input of shape {tuple(x.shape)}); "
            "one value has no covariance"
        )
    bad = int((~rows.isfinite()).any(1).sum())
    if bad:
        raise ValueError(
            f"expected finite features (got NaN or infinity in {bad} of {len(rows)} rows); look for a diverged loss or "
            "a division by zero before this layer"
        )
    return rows


def covariance(x: Tensor) -> Tensor:
    """The biased covariance ``(C, C)`` of features ``(N, C, ...)``, in float64."""
    return covariance_of(features_of(x))


def covariance_of(rows: Tensor) -> Tensor:
    """The same of rows as :func:`features_of` gives them, unchecked."""
    with torch.no_grad():
        cov = channel_moments(rows, rows.shape[1]).cov.reshape(rows.shape[1], rows.shape[1])
        # What a constant varies by is rounding.
        constant = cov.diagonal() <= (4 * sys.float_info.epsilon * rows.mean(0)).square()
        return cov.masked_fill(constant | constant[:, None], 0)


def spectrum(x: Tensor) -> Tensor:
    """The eigenvalues of the covariance, from the largest, none below zero."""
    return spectrum_of(covariance(x))


def spectrum_of(cov: Tensor) -> Tensor:
    """The same of a covariance."""
    return torch.linalg.eigvalsh(cov).flip(0).clamp_min(0)


def condition_number(x: Tensor, percent: float = 100, *, live: bool = False) -> float:
    r"""The condition number of the features' covariance, or of a share of its directions (GW, figure 2).

    .. math:: \kappa = \frac{\lambda_{max}}{\lambda_{min}}, \qquad
              \kappa_p = \frac{\lambda_{max}}{\lambda_{\lceil p d \rceil}}

    with eigenvalues from the largest. Of features that are singular to float64's precision it is infinite; a share
    below 100 % looks past a few dead directions, ``live`` past all of them.

    Args:
        x: ``(N, C)`` or ``(N, C, ...)``.
        percent: p, above 0 up to 100.
        live: count only the d directions that :func:`dead_directions` leaves; NaN where it leaves none.

    Example::

        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> condition_number(x)
        4.0
        >>> twice = torch.cat([x, x], 1)
        >>> condition_number(twice), condition_number(twice, live=True)
        (inf, 4.0)
    """
    check_number("percent", percent, 1e-9, 100, "it is a share of the directions; the paper uses 80 and 90")
    values = spectrum(x).tolist()
    return condition_of(values, percent, dead_of(values, rounding_of(features_of(x), x.dtype)) if live else 0)


def dead_directions(x: Tensor) -> int:
    r"""In how many directions features do not vary, but for rounding.

    There are such directions where there are fewer values than features (n values span n - 1), where a norm leaves
    none (LayerNorm's output has mean zero in every sample), where a layer before is narrower, or has channels without
    a signal. Zero in exact arithmetic, their eigenvalues are here at the level of rounding: at most
    :math:`\varepsilon^{3/2}` of the features' mean square, with :math:`\varepsilon` of their dtype, whose square is
    what one rounding makes.

    Example::

        >>> x = torch.randn(100, 8)
        >>> dead_directions(x), dead_directions(nn.LayerNorm(8)(x)), dead_directions(x[:4])
        (0, 1, 5)
    """
    return dead_of(spectrum(x).tolist(), rounding_of(features_of(x), x.dtype))


def rounding_of(rows: Tensor, dtype: torch.dtype) -> float:
    """The variance that rounding may make in a direction of features that are of this dtype."""
    return torch.finfo(dtype).eps ** 1.5 * rows.square().mean().item()


def dead_of(values: list[float], rounding: float) -> int:
    """How many of the eigenvalues, from the largest, are at the level of rounding, theirs or the features'."""
    least = max(rounding, negligible(values[0], len(values)))
    return sum(value <= least for value in values)


def condition_of(values: list[float], percent: float = 100, dead: int = 0) -> float:
    """The condition number of eigenvalues from the largest, but the dead ones at their end."""
    live = values[: len(values) - dead]
    if not live:
        return math.nan
    smallest = live[math.ceil(percent * len(live) / 100) - 1]
    return math.inf if smallest <= negligible(values[0], len(values)) else values[0] / smallest


def negligible(largest: float, count: int) -> float:
    """What is zero to float64's precision among so many eigenvalues."""
    return largest * count * sys.float_info.epsilon


def correlation(x: Tensor) -> float:
    r"""The mean absolute correlation of two different features.

    .. math:: \frac{1}{d(d-1)} \sum_{i \ne j} \frac{|\Sigma_{ij}|}{\sqrt{\Sigma_{ii} \Sigma_{jj}}}

    Features that are constant correlate with nothing.

    Example::

        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
        >>> round(correlation(x), 6)
        1.0
    """
    return mean_correlation(correlations_of(covariance(x)))


def mean_correlation(matrix: Tensor) -> float:
    """The same of a correlation matrix."""
    size = len(matrix)
    if size == 1:
        return 0.0
    matrix = matrix.abs()
    return ((matrix.sum() - matrix.diagonal().sum()) / (size * (size - 1))).item()


def correlations_of(cov: Tensor) -> Tensor:
    """The correlation matrix ``(C, C)`` of a covariance, with zeros for constant features."""
    scale = cov.diagonal().sqrt()
    return (cov / (scale[:, None] * scale[None, :])).nan_to_num(0)


def whiteness_error(x: Tensor) -> float:
    r"""How far the covariance is from the identity, :math:`\lVert \Sigma - I \rVert_F / \sqrt d`.

    Example::

        >>> x = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        >>> whiteness_error(x)
        0.0
    """
    cov = covariance(x)
    identity = torch.eye(len(cov), dtype=cov.dtype, device=cov.device)
    return (torch.linalg.matrix_norm(cov - identity) / math.sqrt(len(cov))).item()
