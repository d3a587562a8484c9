"""Weights of a trained classifier for the backbone of a detector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whitenorm_lab.nets.pretrained import read_weights
from whitenorm_lab.training import loading
from whitenorm_lab.training.folder import RunFolder

# The part of the classifier that a backbone does not use.
_CLASSIFIER = "fc."
_MAX_DIFFERENCES = 4


def load_classifier(path: Path) -> dict[str, Tensor]:
    """Return the state dict of a file, or of the folder of a ``whitenorm-lab train`` run."""
    return loading.load_weights(RunFolder(path)) if path.is_dir() else read_weights(path)


def list_differences(net: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Describe the differences between a state and a network, ignoring the classifier; empty if the state fits."""
    expected, shapes = _shapes(net.state_dict()), _shapes(state)
    missing = [f"no {name}" for name in expected if name not in shapes]
    unexpected = [f"unexpected {name}" for name in shapes if name not in expected]
    reshaped = [
        f"{name} of shape {shapes[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    return missing + unexpected + reshaped


def load_backbone_(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that fits, except the classifier."""
    net.load_state_dict({name: state[name] for name in _shapes(state)}, strict=False)


def build_misfit_error(file: Path | None, net: str, differences: Mapping[str, list[str]]) -> ValueError:
    """Return the error for weights that fit the network with none of several norms, with the differences per norm."""
    text = "; ".join(
        f"with {norm}: {', '.join(rows[:_MAX_DIFFERENCES])}"
        + (f" and {len(rows) - _MAX_DIFFERENCES} more" if len(rows) > _MAX_DIFFERENCES else "")
        for norm, rows in differences.items()
    )
    return ValueError(
        f"expected the weights of a {net} with the requested norms, or with BatchNorm, in {file} (got {text}); pass "
        "the net and norm that they were trained with"
    )


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    # Only some files contain the batch counters.
    return {
        name: tuple(value.shape)
        for name, value in state.items()
        if not name.startswith(_CLASSIFIER) and not name.endswith("num_batches_tracked")
    }
