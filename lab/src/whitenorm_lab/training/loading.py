"""The model of a run, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab import checksum, tasks
from whitenorm_lab.training.checkpoints import newest_whole
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.task import Task

_PREFIX = "model."


def load(run: Path | str) -> nn.Module:
    """The model that a run of ``whitenorm-lab train`` trained, in eval mode, on the CPU.

    Of a run that is done the final weights, of one that was stopped those of its newest checkpoint.

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
    config = folder.config()
    if "model" in folder.given():
        raise ValueError(
            f"expected a run whose model was named (got {folder.path}, whose model was handed to fit); build that "
            "model and load weights.pt into it"
        )
    # A model's first weights are drawn, which nobody else's draws should notice.
    with torch.random.fork_rng(devices=[]):
        model = build(tasks.build_task(config), folder.description())
    try:
        model.load_state_dict(weights(folder))
    except RuntimeError as error:
        raise OSError(f"expected weights of the run's model in {folder.path} (got others): {error}") from error
    return model.eval()


def build(task: Task[Any], description: dict[str, Any]) -> nn.Module:
    """The model of a task, untrained."""
    model = task.build(description)
    return model.double() if task.config.precision == "64" else model


def weights(folder: RunFolder) -> dict[str, Tensor]:
    """The state of a run's model: the final one, or else that of the newest checkpoint."""
    if (final := folder.weights()) is not None:
        return final
    checkpoint, wrong = newest_whole(folder.checkpoints)
    if checkpoint is None:
        raise OSError(
            f"expected weights.pt or a checkpoint in {folder.path} (got neither); train until there is one"
            + "".join(f". {path} is damaged: {why}" for path, why in wrong.items())
        )
    state = checksum.read_archive(checkpoint)["state_dict"]
    return {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
