"""Gaussian features normalised in sets of a few values, as GW's figures 3 and 4 look at them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

# For equal values only: the figures are of the equations, which have no ε.
_EPS = 1e-30


def normalised(x: Tensor, method: str, size: int) -> Tensor:
    """GN with ``size`` channels a group, or BN with ``size`` samples a batch, of ``(N, d)``; ``"base"`` leaves x.

    Example::

        >>> sorted({round(value, 3) for value in normalised(torch.randn(4, 6).double(), "BN", 2).flatten().tolist()})
        [-1.0, 1.0]
    """
    if method == "base":
        return x
    if method == "GN":
        return F.group_norm(x, x.shape[1] // size, eps=_EPS)
    batches = x.view(-1, size, x.shape[1])
    variance, mean = torch.var_mean(batches, 1, correction=0, keepdim=True)
    return ((batches - mean) * (variance + _EPS).rsqrt()).view_as(x)
