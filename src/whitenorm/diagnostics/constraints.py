"""How much a normalization constrains what it normalises."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm.ops.check import check_divides, check_positive

METHODS = ("bn", "bw", "gn", "gw")


class Range(NamedTuple):
    """Of a batch size m or a group number g: what is feasible, both ends included."""

    what: str
    least: int
    most: int | None


def constraint_number(
    method: str, features: int, batch: int, groups: int | None = None, *, data: int | None = None
) -> int:
    r"""The number of independent equations that a normalized output satisfies (GW, table 1).

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
        groups: g, for the last two.
        data: N, a multiple of m, for the number over a whole data set.

    Example::

        >>> constraint_number("bn", 64, 16), constraint_number("bw", 64, 16), constraint_number("gw", 64, 16, groups=8)
        (128, 2144, 704)
    """
    _check(method, features, groups)
    check_positive("batch", batch)
    if data is not None:
        check_divides("batch", batch, "data", data)
    batches = 1 if data is None else data // batch
    g = groups or 1
    each = {
        "bn": 2 * features,
        "bw": features * (features + 3) // 2,
        "gn": 2 * g * batch,
        "gw": batch * g * (g + 3) // 2,
    }
    return batches * each[method]


def feasible_range(method: str, features: int) -> Range:
    r"""The batch sizes or group numbers that leave a solution (GW, table 1).

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
    """The same number by counting: the rank of the constraints' Jacobian at a random normalised output.

    Example::

        >>> measured_constraint_number("gw", 12, 3, groups=3), constraint_number("gw", 12, 3, groups=3)
        (27, 27)
    """
    _check(method, features, groups)
    check_positive("batch", batch)
    x = torch.randn(features, batch, dtype=torch.float64, generator=generator)
    jacobian = torch.func.jacrev(lambda y: _equations(method, y, groups or 1))(_normalized(method, x, groups or 1))
    return int(torch.linalg.matrix_rank(jacobian.reshape(len(jacobian), -1)))


def _blocks(method: str, x: Tensor, groups: int) -> Tensor:
    """What is normalised together, as ``(B, K, values)``: all of K is standardised, or whitened."""
    if method == "bn":
        return x.unsqueeze(1)
    if method == "bw":
        return x.unsqueeze(0)
    samples = x.T.reshape(x.shape[1], groups, -1)
    return samples.flatten(0, 1).unsqueeze(1) if method == "gn" else samples


def _normalized(method: str, x: Tensor, groups: int) -> Tensor:
    blocks = _blocks(method, x, groups)
    blocks = blocks - blocks.mean(-1, keepdim=True)
    values, vectors = torch.linalg.eigh(blocks @ blocks.mT / blocks.shape[-1])
    white = vectors @ (values.clamp_min(1e-12).rsqrt().unsqueeze(-1) * vectors.mT) @ blocks
    if method in ("bn", "bw"):
        return white.reshape(x.shape)
    return white.reshape(x.shape[1], -1).T


def _equations(method: str, y: Tensor, groups: int) -> Tensor:
    """Means, and second moments on and above the diagonal, all of which are constant."""
    blocks = _blocks(method, y, groups)
    rows, columns = torch.triu_indices(blocks.shape[1], blocks.shape[1])
    second = (blocks @ blocks.mT)[:, rows, columns]
    return torch.cat([blocks.sum(-1).flatten(), second.flatten()])


def _check(method: str, features: int, groups: int | None) -> None:
    if method not in METHODS:
        known = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(f"expected method to be one of {known} (got {method!r})")
    check_positive("features", features)
    if method in ("gn", "gw"):
        if groups is None:
            raise ValueError(f'expected the number of groups for "{method}" (got None); pass groups=')
        check_divides("groups", groups, "features", features)
