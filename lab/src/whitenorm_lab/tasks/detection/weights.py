"""A trained classifier's weights, from a file, for the backbone of a detector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whitenorm_lab.nets.pretrained import file_weights
from whitenorm_lab.training import loading
from whitenorm_lab.training.folder import RunFolder

# What a backbone leaves of its classifier.
_CLASSIFIER = "fc."
_LISTED = 4


def state_of(path: Path) -> dict[str, Tensor]:
    """The state dict of a file, or of the folder of a run of ``whitenorm-lab train``."""
    return loading.load_weights(RunFolder(path)) if path.is_dir() else file_weights(path)


def differences(net: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """What of a state is not as a net has it, but for its classifier; nothing where it fits."""
    own, given = _shapes(net.state_dict()), _shapes(state)
    missing = [f"no {name}" for name in own if name not in given]
    foreign = [f"{name}, which the net has not" for name in given if name not in own]
    shapes = [
        f"{name} of shape {given[name]}, where the net has {shape}"
        for name, shape in own.items()
        if name in given and given[name] != shape
    ]
    return missing + foreign + shapes


def fill_(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state that fits; the classifier stays."""
    net.load_state_dict({name: state[name] for name in _shapes(state)}, strict=False)


def misfit(file: Path | None, net: str, lists: Mapping[str, list[str]]) -> ValueError:
    """What to say of weights that fit none of a net's forms, by their names."""
    said = "; ".join(
        f"as {form}: {', '.join(found[:_LISTED])}{f' and {len(found) - _LISTED} more' if len(found) > _LISTED else ''}"
        for form, found in lists.items()
    )
    return ValueError(
        f"expected the weights of a {net} with the norms that are asked for, or with BatchNorm, in {file} (got {said})"
        "; name the net and norm that they were trained with"
    )


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    # Counters of batches are in some files and not in others.
    left_out = ("num_batches_tracked",)
    return {
        name: tuple(value.shape)
        for name, value in state.items()
        if not name.startswith(_CLASSIFIER) and not name.endswith(left_out)
    }
