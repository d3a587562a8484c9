"""Batch whitening composed of PyTorch's operations and differentiated by autograd.

It has no transposed copies, handles all groups at once, and runs Newton in the coupled form, so that the layers differ
only by their analytic backward. The papers' SW, IW and GW in :mod:`benchmarks.papers` are such compositions already.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.papers import Affine

EPS = {"newton": 1e-5, "zca": 1e-3}


class Native(Affine):
    """IterNorm (``"newton"``) or DBN (``"zca"``) for ``(N, C, ...)``."""

    def __init__(self, channels: int, group_size: int, solver: str, steps: int = 5) -> None:
        size = min(group_size, channels)
        super().__init__(channels, channels // size, size)
        self.eps = EPS[solver]
        self.solve: Callable[[Tensor], Tensor] = zca if solver == "zca" else lambda cov: newton(cov, steps)

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], self.groups, self.size, -1)
        if not self.training:
            return self.scale((self.running_matrix @ (groups - self.running_mean)).view_as(x))
        mean = groups.mean((0, 3), keepdim=True)[0]
        centred = groups - mean
        cov = (centred @ centred.mT).sum(0) / (groups.shape[0] * groups.shape[3])
        matrix = self.solve(cov + self.eps * torch.eye(self.size, dtype=cov.dtype))
        self.record(mean.detach(), matrix.detach())
        return self.scale((matrix @ centred).view_as(x))


def newton(cov: Tensor, steps: int) -> Tensor:
    """Return the whitening matrix by Newton's iteration in the coupled form."""
    eye = torch.eye(cov.shape[-1], dtype=cov.dtype)
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    y, z = cov / trace, eye.expand_as(cov)
    for _ in range(steps):
        t = 1.5 * eye - 0.5 * z @ y
        y, z = y @ t, t @ z
    return z / trace.sqrt()


def zca(cov: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.rsqrt().unsqueeze(-2) @ vectors.mT
