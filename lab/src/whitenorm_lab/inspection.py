"""Training runs as models for ``whitenorm inspect``; registered as the entry point ``whitenorm.runs``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab import tasks, training
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.task import move_inputs


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a training run."""
    return (folder / "config.json").is_file()


def load(folder: Path) -> nn.Module:
    """Return the trained model of a run."""
    return training.load(folder)


def batch(folder: Path) -> tuple[Any, str]:
    """Return a batch for a run's model, and one sentence that says what it is.

    The batch has training examples of the run's own data, in its batch size and without augmentation. It is random if
    those data cannot be loaded.
    """
    run = RunFolder(folder)
    config = run.read_config()
    task = tasks.build_task(replace(config, folder=None, sync=False, workers=0))
    like = torch.empty(0, dtype=torch.float64 if config.precision == "64" else torch.float32)
    try:
        if "dataset" in run.read_overrides():
            raise ValueError("it was passed to fit")
        loaders = task.build_loaders(None, lambda: 0, 0, 1)
    except (OSError, ValueError) as error:
        inputs = move_inputs(task.example_inputs(run.read_description(), config.batch_size or 64), like)
        return inputs, f"Measured on noise, {_format_shape(inputs)}: the run's data cannot be loaded: {error}"
    try:
        examples = next(iter(loaders.build_calibration(max(1, round(loaders.examples_per_step)))))
        inputs = move_inputs(task.inputs(task.prepare_batch(examples)), like)
        return inputs, f"Measured on training {task.unit}, {_format_shape(inputs)}."
    finally:
        loaders.close()


def _format_shape(inputs: Any) -> str:
    """Format the shape of a tensor, or of all tensors of a dict or list."""
    if isinstance(inputs, Tensor):
        return " × ".join(map(str, inputs.shape))
    return " and ".join(_format_shape(value) for value in (inputs.values() if isinstance(inputs, dict) else inputs))
