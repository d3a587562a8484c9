"""Models of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab import checksum, tasks
from whitenorm_lab.training.checkpoints import find_newest_checkpoint
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.task import Task

_PREFIX = "model."


def load(run: Path | str) -> nn.Module:
    """Load the model of a run of ``whitenorm-lab train``, in eval mode, on the CPU.

    It has the final weights, or those of the newest checkpoint if the run is not done.

    Args:
        run: the run's folder.

    Example::

        >>> import tempfile
        >>> from whitenorm_lab.training import Train, fit, load
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> _ = fit(Train(net="mlp-16", norm="iternorm", dataset="digits", epochs=1, folder=folder, quiet=True))
        >>> load(folder)[2]
        IterNorm(16, ...)
    """
    folder = RunFolder(Path(run))
    config = folder.read_config()
    if "model" in folder.read_overrides():
        raise ValueError(
            f"expected a run whose configuration names its model (got {folder.path}, whose model was passed to fit); "
            "build that model and load weights.pt into it"
        )
    # Drawing the initial weights must not advance the caller's random state.
    with torch.random.fork_rng(devices=[]):
        model = build_model(tasks.build_task(config), folder.read_description())
    try:
        model.load_state_dict(load_weights(folder))
    except RuntimeError as error:
        raise OSError(f"expected weights of the run's model in {folder.path} (got others): {error}") from error
    return model.eval()


def build_model(task: Task[Any], description: dict[str, Any]) -> nn.Module:
    """Build the untrained model of a task in the precision of its configuration."""
    model = task.build_model(description)
    return model.double() if task.config.precision == "64" else model


def load_weights(folder: RunFolder) -> dict[str, Tensor]:
    """Return the final state dict of a run's model, or that of the newest checkpoint if the run is not done."""
    if (weights := folder.read_weights()) is not None:
        return weights
    checkpoint, problems = find_newest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise OSError(
            f"expected weights.pt or a checkpoint in {folder.path} (got neither); train until there is one"
            + "".join(f". {path} is damaged: {reason}" for path, reason in problems.items())
        )
    state = checksum.read_archive(checkpoint)["state_dict"]
    return {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
