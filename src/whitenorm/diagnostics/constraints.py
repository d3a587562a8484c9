"""How much a normalization constrains features, and how diverse the features stay (GW)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.diagnostics.conditioning import flatten_features
from whitenorm.ops.check import check_divides, check_positive

METHODS = ("bn", "bw", "gn", "gw")


class Range(NamedTuple):
    """Feasible values of a batch size or a number of groups, both ends included; no upper limit if ``most`` is None."""

    what: str
    least: int
    most: int | None


def constraint_number(
    method: str, features: int, batch: int, groups: int | None = None, *, data: int | None = None
) -> int:
    r"""Return the number of independent equations that a normalized output satisfies (GW, table 1).

    | method | over a batch of m   | over N data in batches of m |
    | ------ | ------------------- | --------------------------- |
    | BN     | :math:`2d`          | :math:`2dN/m`               |
    | BW     | :math:`d(d+3)/2`    | :math:`d(d+3)N/2m`          |
    | GN     | :math:`2gm`         | :math:`2gN`                 |
    | GW     | :math:`mg(g+3)/2`   | :math:`Ng(g+3)/2`           |

    An output of m·d values cannot satisfy more equations than it has values; see :func:`feasible_range`.

    Args:
        method: ``"bn"``, ``"bw"`` (whitening of all features), ``"gn"`` or ``"gw"``.
        features: d.
        batch: m.
        groups: g, for ``"gn"`` and ``"gw"``.
        data: N, a multiple of m, for the number over a whole data set.

    Example::

        >>> constraint_number("bn", 64, 16), constraint_number("bw", 64, 16), constraint_number("gw", 64, 16, groups=8)
        (128, 2144, 704)
    """
    _check(method, features, groups)
    check_positive("batch", batch)
    if data is not None:
        check_divides("batch", batch, "data", data)
    g = groups or 1
    per_batch = {
        "bn": 2 * features,
        "bw": features * (features + 3) // 2,
        "gn": 2 * g * batch,
        "gw": batch * g * (g + 3) // 2,
    }
    return per_batch[method] * (1 if data is None else data // batch)


def feasible_range(method: str, features: int) -> Range:
    r"""Return the batch sizes or numbers of groups for which the constraints have a solution (GW, table 1).

    BN needs :math:`m \ge 2`, BW :math:`m \ge (d+3)/2`, GN :math:`g \le d/2` and GW
    :math:`g \le (\sqrt{8d+9} - 3)/2`. For a numerically stable whitening, the paper advises m of at least d for BW and
    g of at most √d for GW.

    Example::

        >>> feasible_range("gw", 256)
        Range(what='groups', least=1, most=21)
    """
    _check(method, features, 1)
    if method == "bn":
        return Range("batch", 2, None)
    if method == "bw":
        return Range("batch", math.ceil((features + 3) / 2), None)
    if method == "gn":
        return Range("groups", 1, features // 2)
    return Range("groups", 1, (math.isqrt(8 * features + 9) - 3) // 2)


def measured_constraint_number(
    method: str, features: int, batch: int, groups: int | None = None, *, generator: torch.Generator | None = None
) -> int:
    """Return the constraint number as the rank of the constraints' Jacobian at a random normalized output.

    Example::

        >>> measured_constraint_number("gw", 12, 3, groups=3), constraint_number("gw", 12, 3, groups=3)
        (27, 27)
    """
    _check(method, features, groups)
    check_positive("batch", batch)
    x = torch.randn(features, batch, dtype=torch.float64, generator=generator)
    y = _normalize(method, x, groups or 1)
    jacobian = torch.func.jacrev(lambda y: _evaluate_constraints(method, y, groups or 1))(y)
    return int(torch.linalg.matrix_rank(jacobian.reshape(len(jacobian), -1)))


def diversity(
    features: Tensor, bins: int = 1000, pairs: int = 10, *, generator: torch.Generator | None = None
) -> float:
    r"""Return the entropy of pairs of features over a grid, averaged over sampled pairs (GW, equation 13).

    .. math:: \Gamma_{2,T} = -\sum_{i=1}^{T^2} p_i \log p_i

    Each feature is divided by its largest absolute value, and the square :math:`[-1, 1]^2` is cut into T×T bins; p_i is
    the share of samples in a bin. Constrained features, which take few values, have a low diversity. (The paper calls
    this the entropy, but prints the sum without the minus.)

    Args:
        features: ``(N, C)`` or ``(N, C, ...)`` with C of at least 2.
        bins: T.
        pairs: number of pairs to average over; all of them, if there are fewer.
        generator: for the choice of pairs.

    Example::

        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(diversity(corners, bins=10), 6)  # log 4
        1.386294
    """
    check_positive("bins", bins)
    check_positive("pairs", pairs)
    rows = flatten_features(features, min_rows=1)
    width = rows.shape[1]
    if width < 2:
        raise ValueError(f"expected at least two features (got {width}); diversity is of pairs")
    largest = rows.abs().amax(0).clamp_min(torch.finfo(rows.dtype).tiny)
    # The right edge belongs to the last bin.
    cells = ((rows / largest + 1) / 2 * bins).long().clamp_max(bins - 1)
    first, second = torch.triu_indices(width, width, offset=1)
    sampled = torch.randperm(len(first), generator=generator)[:pairs].to(rows.device)
    entropies = [_entropy(cells[:, first[i]] * bins + cells[:, second[i]]) for i in sampled.tolist()]
    return torch.stack(entropies).mean().item()


def _entropy(cells: Tensor) -> Tensor:
    counts = torch.unique(cells, return_counts=True)[1].double()
    shares = counts / counts.sum()
    return -(shares * shares.log()).sum()


def _as_blocks(method: str, x: Tensor, groups: int) -> Tensor:
    """Return ``(B, K, values)`` of x ``(features, batch)``, whose K rows are standardized (K = 1) or whitened."""
    if method == "bn":
        return x.unsqueeze(1)
    if method == "bw":
        return x.unsqueeze(0)
    samples = x.T.reshape(x.shape[1], groups, -1)
    return samples.flatten(0, 1).unsqueeze(1) if method == "gn" else samples


def _normalize(method: str, x: Tensor, groups: int) -> Tensor:
    blocks = _as_blocks(method, x, groups)
    blocks = blocks - blocks.mean(-1, keepdim=True)
    values, vectors = torch.linalg.eigh(blocks @ blocks.mT / blocks.shape[-1])
    white = vectors @ (values.clamp_min(1e-12).rsqrt().unsqueeze(-1) * vectors.mT) @ blocks
    if method in ("bn", "bw"):
        return white.reshape(x.shape)
    return white.reshape(x.shape[1], -1).T


def _evaluate_constraints(method: str, y: Tensor, groups: int) -> Tensor:
    """Return the values that normalization makes constant: sums, and second moments on and above the diagonal."""
    blocks = _as_blocks(method, y, groups)
    rows, columns = torch.triu_indices(blocks.shape[1], blocks.shape[1])
    second = (blocks @ blocks.mT)[:, rows, columns]
    return torch.cat([blocks.sum(-1).flatten(), second.flatten()])


def _check(method: str, features: int, groups: int | None) -> None:
    if method not in METHODS:
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(f"expected method to be one of {names} (got {method!r})")
    check_positive("features", features)
    if method in ("gn", "gw"):
        if groups is None:
            raise ValueError(f'expected the number of groups for "{method}" (got None); pass groups=')
        check_divides("groups", groups, "features", features)
