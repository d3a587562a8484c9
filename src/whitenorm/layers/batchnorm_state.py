"""Conversion of a BatchNorm's entries of a state dict to those of a whitening layer."""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import compute_dtype

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def has_batchnorm_state(state: MutableMapping[str, Any], prefix: str, num_features: int) -> bool:
    """Return whether a state dict has the population of a BatchNorm of this width under a prefix."""
    variance = state.get(f"{prefix}running_var")
    return isinstance(variance, Tensor) and variance.shape == (num_features,)


def convert_statistics(
    state: MutableMapping[str, Any], prefix: str, matrix_name: str, group_size: int, eps: float, old_eps: float
) -> None:
    """Replace ``running_var`` by the diagonal matrix that gives exactly BatchNorm's output with its ``old_eps``."""
    variance = state.pop(f"{prefix}running_var")
    variance = variance.to(compute_dtype(variance.dtype))
    state[f"{prefix}{matrix_name}"] = diagonal_matrix(variance + old_eps, matrix_name, group_size, eps)


def diagonal_matrix(variance: Tensor, matrix_name: str, group_size: int, eps: float) -> Tensor:
    """Return the running matrix ``(G, K, K)`` that standardizes by a variance that includes its ε."""
    exact = variance - eps if matrix_name == "running_cov" else variance.rsqrt()
    return torch.diag_embed(exact.reshape(-1, group_size))


def drop_statistics(state: MutableMapping[str, Any], prefix: str, kind: str) -> None:
    """Remove a BatchNorm's population for a layer that has none, with a warning."""
    for name in _STATISTICS:
        state.pop(f"{prefix}{name}", None)
    warnings.warn(
        f"the population statistics of BatchNorm in this state dict are left out: {kind} uses statistics of each "
        "sample instead, so the output differs from the original model's until the model is fine-tuned",
        stacklevel=2,
    )
