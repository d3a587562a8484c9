"""Normalize Gaussian features in small sets, as figures 3 and 4 of the GW paper do."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

# Only for sets of equal values: the figures follow the equations, which have no ε.
_EPS = 1e-30


def normalize(x: Tensor, method: str, size: int) -> Tensor:
    """Normalize ``(N, d)`` by GN with ``size`` channels per group or by BN with ``size`` samples per batch.

    Args:
        x: the features.
        method: ``"GN"``, ``"BN"``, or ``"base"`` to return ``x`` unchanged.
        size: channels per group or samples per batch.

    Example::

        >>> sorted({round(value, 3) for value in normalize(torch.randn(4, 6).double(), "BN", 2).flatten().tolist()})
        [-1.0, 1.0]
    """
    if method == "base":
        return x
    if method == "GN":
        return F.group_norm(x, x.shape[1] // size, eps=_EPS)
    batches = x.view(-1, size, x.shape[1])
    variance, mean = torch.var_mean(batches, 1, correction=0, keepdim=True)
    return ((batches - mean) * (variance + _EPS).rsqrt()).view_as(x)
