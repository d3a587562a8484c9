"""A BatchNorm's state, loaded into the whitening layer that took its place."""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import compute_dtype

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_batch_norm(state: MutableMapping[str, Any], prefix: str, num_features: int) -> bool:
    """Whether a state dict has the population of a BatchNorm of this width under this prefix."""
    variance = state.get(f"{prefix}running_var")
    return isinstance(variance, Tensor) and variance.shape == (num_features,)


def to_diagonal(
    state: MutableMapping[str, Any], prefix: str, matrix_name: str, group_size: int, eps: float, old_eps: float
) -> None:
    """Make running_var the matrix that a population of this variance is: diagonal, and exactly BatchNorm's.

    What was trained with ``old_eps`` is then computed with it.
    """
    variance = state.pop(f"{prefix}running_var")
    variance = variance.to(compute_dtype(variance.dtype))
    state[f"{prefix}{matrix_name}"] = diagonal_matrix(variance + old_eps, matrix_name, group_size, eps)


def diagonal_matrix(variance: Tensor, matrix_name: str, group_size: int, eps: float) -> Tensor:
    """The running matrix ``(G, K, K)`` that standardises by a variance which has its ε in it."""
    exact = variance - eps if matrix_name == "running_cov" else variance.rsqrt()
    return torch.diag_embed(exact.reshape(-1, group_size))


def leave_out(state: MutableMapping[str, Any], prefix: str, kind: str) -> None:
    """Drop a BatchNorm's population for a layer that has none, and say so."""
    for name in _STATISTICS:
        state.pop(f"{prefix}{name}", None)
    warnings.warn(
        f"the population statistics of BatchNorm in this state dict are left out: {kind} has statistics of the sample "
        "instead, so that the model's output is not what it was before it is trained on",
        stacklevel=2,
    )
