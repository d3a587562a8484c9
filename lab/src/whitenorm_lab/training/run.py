"""Train by a configuration."""

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
from whitenorm_lab.training import recalibration
from whitenorm_lab.training.checkpoints import newest_whole
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.loading import build
from whitenorm_lab.training.lock import locked
from whitenorm_lab.training.module import Training
from whitenorm_lab.training.outcome import DivergenceError, Outcome
from whitenorm_lab.training.progress import say
from whitenorm_lab.training.sources import Source
from whitenorm_lab.training.task import Task
from whitenorm_lab.training.trainer import make_trainer, quiet


def fit(
    config: RunConfig,
    *,
    model: nn.Module | None = None,
    dataset: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train a model for a task and return its numbers.

    The weights that are left have the population statistics of the last test (``config.recalibrate``). With a folder, a
    run that was stopped goes on from its last checkpoint, and one that is done returns its outcome.

    Args:
        config: the run, of a task's dataclass.
        model: trained, in training mode, in place of the one that the configuration names.
        dataset: in place of the data that it names; of classification, a :class:`whitenorm_lab.data.Dataset`.
        callbacks: lightning's, to watch training with.

    Raises:
        DivergenceError: the loss is NaN or infinite; its ``outcome`` has the epochs before.

    Example::

        >>> from whitenorm_lab.training import Train
        >>> outcome = fit(Train(net="mlp-16", dataset="digits", epochs=1, quiet=True))
        >>> outcome.test_accuracy > 0.5
        True
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    folder = None if config.folder is None else RunFolder(config.folder)
    if folder is not None:
        folder.check(config)
        if (done := _done(config, folder)) is not None:
            return done
    torch.manual_seed(config.seed)
    task = tasks.build_task(config)
    batches = task.source(dataset, lambda: trainer.global_step, rank, world)
    given = [name for name, value in (("model", model), ("dataset", dataset)) if value is not None]
    module = _module(build(task, batches.description) if model is None else model, task, batches, world)
    task.check(module.model, batches.description)
    with quiet(), _held(folder, rank):
        epochs = -(-module.total_steps // module.steps_per_epoch)
        trainer = make_trainer(config, folder, epochs, len(batches.tests) > 0, callbacks)
        checkpoint = None
        if folder is not None:
            # Another process may have come first.
            if (done := _done(config, folder)) is not None:
                return done
            checkpoint = _checkpoint(config, folder, module, rank)
            if rank == 0:
                folder.claim(config, batches.description, given)
        outcome = _trained(trainer, module, batches, checkpoint, None if folder is None or rank else folder.path)
        if folder is not None and rank == 0:
            folder.finish(outcome, module.model)
    return outcome


def _trained(
    trainer: Trainer, module: Training, batches: Source, checkpoint: Path | None, folder: Path | None
) -> Outcome:
    """Train to the end, test, leave the population of the last test in the model, and let the task finish."""
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    outcome = Outcome(module.config.to_dict(), batches.description, parameters)
    tests = list(batches.tests.values())
    try:
        trainer.fit(module, batches.train, tests, ckpt_path=checkpoint)
        if tests and not module.history[-1].tests:
            trainer.validate(module, tests, verbose=False)
            module.record_test(module.history[-1])
        if module.calibration is not None:
            module.to(trainer.strategy.root_device).eval().recalibrate()
        if folder is not None:
            module.to(trainer.strategy.root_device).eval()
            with torch.no_grad():
                module.task.finish(module.model, batches, folder)
    except SystemExit as error:
        # Lightning's answer to Ctrl-C, which it also turns off.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    except DivergenceError as error:
        error.outcome = outcome
        raise
    finally:
        outcome.epochs = module.history
        batches.close()
    return outcome


def _held(folder: RunFolder | None, rank: int) -> AbstractContextManager[None]:
    return nullcontext() if folder is None or rank else locked(folder.path)


def _done(config: RunConfig, folder: RunFolder) -> Outcome | None:
    """The outcome of a run that is done; none where a file of it is damaged, and so must be made again."""
    try:
        done = folder.outcome() if folder.weights() is not None else None
    except OSError:
        return None
    if done is not None:
        folder.check_same(done.config, config)
        say(config, f"{folder.path} is done; its numbers are in outcome.json.")
    return done


def _checkpoint(config: RunConfig, folder: RunFolder, module: Training, rank: int) -> Path | None:
    """Where to go on from, if anywhere; the first process sets aside what is damaged."""

    def fits(checkpoint: dict[str, Any]) -> None:
        if "config" in checkpoint["whitenorm"]:
            folder.check_same(checkpoint["whitenorm"]["config"], config)
        module.check_state(checkpoint)

    if rank:
        return newest_whole(folder.checkpoints, fits)[0]
    checkpoint, lines = folder.mend(fits)
    for line in lines:
        say(config, line)
    if checkpoint is not None:
        say(config, f"Going on from {checkpoint}.")
    return checkpoint


def _module(model: nn.Module, task: Task[Any], batches: Source, world: int) -> Training:
    config, module = task.config, Training(model.train(), task, batches.tests)
    if number := recalibration.examples(config, model, task.calibrated):
        module.calibration = batches.calibration(number)
    module.steps_per_epoch = len(batches.train)
    module.total_steps = min(config.epochs * len(batches.train), config.steps or 2**62)
    module.per_step = batches.per_step
    if config.sync and world == 1:
        raise ValueError("expected several processes, started by torchrun, for sync (got one); leave it out")
    return module
