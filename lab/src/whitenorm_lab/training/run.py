"""Training by a configuration."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from whitenorm_lab import tasks
from whitenorm_lab.training.checkpoints import find_newest_checkpoint
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.loading import build_model
from whitenorm_lab.training.lock import lock_folder
from whitenorm_lab.training.module import TrainingModule
from whitenorm_lab.training.norm_statistics import count_calibration_examples
from whitenorm_lab.training.progress import print_line
from whitenorm_lab.training.result import DivergenceError, TrainingResult
from whitenorm_lab.training.task import Task
from whitenorm_lab.training.trainer import build_trainer, silence_lightning


def fit(
    config: RunConfig,
    *,
    model: nn.Module | None = None,
    dataset: Any = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingResult:
    """Train a model for a task and return its scores.

    The final weights include the population statistics of the last test (``config.recalibrate``). With a folder, a run
    that was stopped resumes from its last checkpoint, and one that is done returns its stored result.

    Args:
        config: the configuration, of a task's class.
        model: the model to train, in training mode, in place of the one that the configuration names.
        dataset: the data in place of those that the configuration names; for classification a
            :class:`whitenorm_lab.data.Dataset`.
        callbacks: Lightning callbacks.

    Raises:
        DivergenceError: the loss is NaN or infinite; its ``result`` has the epochs before.

    Example::

        >>> from whitenorm_lab.training import Train
        >>> result = fit(Train(net="mlp-16", dataset="digits", epochs=1, quiet=True))
        >>> result.test_accuracy > 0.5
        True
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    folder = None if config.folder is None else RunFolder(config.folder)
    if folder is not None:
        folder.check_config(config)
        if (result := _read_result(config, folder)) is not None:
            return result
    torch.manual_seed(config.seed)
    task = tasks.build_task(config)
    loaders = task.build_loaders(dataset, lambda: trainer.global_step, rank, world)
    overrides = [name for name, value in (("model", model), ("dataset", dataset)) if value is not None]
    module = _build_module(build_model(task, loaders.description) if model is None else model, task, loaders, world)
    task.check(module.model, loaders.description)
    with silence_lightning(), _lock(folder, rank):
        epochs = -(-module.total_steps // module.steps_per_epoch)
        trainer = build_trainer(config, folder, epochs, len(loaders.tests) > 0, callbacks)
        checkpoint = None
        if folder is not None:
            # Another process may have finished the run before this one held the lock.
            if (result := _read_result(config, folder)) is not None:
                return result
            checkpoint = _find_checkpoint(config, folder, module, rank)
            if rank == 0:
                folder.write_config(config, loaders.description, overrides)
        result = _train(trainer, module, loaders, checkpoint, None if folder is None or rank else folder.path)
        if folder is not None and rank == 0:
            folder.write_results(result, module.model)
    return result


def _train(
    trainer: Trainer, module: TrainingModule, loaders: DataLoaders, checkpoint: Path | None, folder: Path | None
) -> TrainingResult:
    """Train to the end, test, keep the population statistics of the last test, and let the task write its files."""
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    result = TrainingResult(module.config.to_dict(), loaders.description, parameters)
    tests = list(loaders.tests.values())
    try:
        trainer.fit(module, loaders.train, tests, ckpt_path=checkpoint)
        if tests and not module.history[-1].tests:
            trainer.validate(module, tests, verbose=False)
            module.record_test(module.history[-1])
        if module.calibration is not None:
            module.to(trainer.strategy.root_device).eval().recalibrate()
        if folder is not None:
            module.to(trainer.strategy.root_device).eval()
            with torch.no_grad():
                module.task.finish(module.model, loaders, folder)
    except SystemExit as error:
        # Lightning answers Ctrl-C with SystemExit, and leaves SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    except DivergenceError as error:
        error.result = result
        raise
    finally:
        result.epochs = module.history
        loaders.close()
    return result


def _lock(folder: RunFolder | None, rank: int) -> AbstractContextManager[None]:
    return nullcontext() if folder is None or rank else lock_folder(folder.path)


def _read_result(config: RunConfig, folder: RunFolder) -> TrainingResult | None:
    """Return the result of a run that is done; None if one of its files is missing or damaged."""
    try:
        result = folder.read_result() if folder.read_weights() is not None else None
    except OSError:
        return None
    if result is not None:
        folder.check_same_config(result.config, config)
        print_line(config, f"{folder.path} is done; its scores are in outcome.json.")
    return result


def _find_checkpoint(config: RunConfig, folder: RunFolder, module: TrainingModule, rank: int) -> Path | None:
    """Return the checkpoint to resume from, if any; the first process renames damaged files."""

    def check(checkpoint: dict[str, Any]) -> None:
        if "config" in checkpoint["whitenorm"]:
            folder.check_same_config(checkpoint["whitenorm"]["config"], config)
        module.check_state(checkpoint)

    if rank:
        return find_newest_checkpoint(folder.checkpoints, check)[0]
    checkpoint, lines = folder.repair(check)
    for line in lines:
        print_line(config, line)
    if checkpoint is not None:
        print_line(config, f"Resuming from {checkpoint}.")
    return checkpoint


def _build_module(model: nn.Module, task: Task[Any], loaders: DataLoaders, world: int) -> TrainingModule:
    config, module = task.config, TrainingModule(model.train(), task, loaders.tests)
    if examples := count_calibration_examples(config, model, task.calibration_examples):
        module.calibration = loaders.build_calibration(examples)
    module.steps_per_epoch = len(loaders.train)
    module.total_steps = min(config.epochs * len(loaders.train), config.steps or 2**62)
    module.examples_per_step = loaders.examples_per_step
    if config.sync and world == 1:
        raise ValueError("expected several processes, started by torchrun, for sync (got one); leave it out")
    return module
