"""Training runs as models for ``whitenorm inspect``: the entry point ``whitenorm.runs``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab import tasks, training
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.task import placed


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a training run."""
    return (folder / "config.json").is_file()


def load(folder: Path) -> nn.Module:
    """Return the trained model of a run."""
    return training.load(folder)


def batch(folder: Path) -> tuple[Any, str]:
    """A batch for a run's model, and what it is; where the run's data cannot be had, it is random numbers.

    Training examples of the run's own set, as many as it trained on at once, not augmented.
    """
    run = RunFolder(folder)
    config = run.config()
    task = tasks.build_task(replace(config, folder=None, sync=False, workers=0))
    like = torch.empty(0, dtype=torch.float64 if config.precision == "64" else torch.float32)
    try:
        if "dataset" in run.given():
            raise ValueError("it was handed to fit, not named")
        batches = task.source(None, lambda: 0, 0, 1)
    except (OSError, ValueError) as error:
        example = placed(task.example(run.description(), config.batch_size or 64), like)
        return example, f"Measured on noise, {_shape(example)}: the run's data cannot be loaded: {error}"
    try:
        batch = next(iter(batches.calibration(max(1, round(batches.per_step)))))
        inputs = placed(task.inputs(task.on_device(batch)), like)
        return inputs, f"Measured on training {task.unit}, {_shape(inputs)}."
    finally:
        batches.close()


def _shape(inputs: Any) -> str:
    """Of a tensor, or of the tensors that a dict or list has."""
    if isinstance(inputs, Tensor):
        return " × ".join(map(str, inputs.shape))
    return " and ".join(_shape(value) for value in (inputs.values() if isinstance(inputs, dict) else inputs))
