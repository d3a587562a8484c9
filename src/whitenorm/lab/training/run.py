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

from whitenorm.lab.data import Dataset
from whitenorm.lab.training import recalibration
from whitenorm.lab.training.checkpoints import newest_whole
from whitenorm.lab.training.config import Train
from whitenorm.lab.training.folder import Description, RunFolder
from whitenorm.lab.training.loading import build
from whitenorm.lab.training.lock import locked
from whitenorm.lab.training.module import Classifier
from whitenorm.lab.training.outcome import DivergenceError, Outcome
from whitenorm.lab.training.progress import say
from whitenorm.lab.training.sources import Source, source
from whitenorm.lab.training.trainer import make_trainer, quiet


def fit(
    config: Train,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train a net and return its numbers.

    The weights that are left have the population statistics of the last test (``config.recalibrate``). With a folder, a
    run that was stopped goes on from its last checkpoint, and one that is done returns its outcome.

    Args:
        config: the run.
        model: trained in place of the net that the configuration names.
        dataset: in place of the data that it names.
        callbacks: lightning's, to watch training with.

    Raises:
        DivergenceError: the loss is NaN or infinite; its ``outcome`` has the epochs before.

    Example::

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
    batches = source(config, dataset, lambda: trainer.global_step, rank, world)
    given = tuple(name for name, value in (("model", model), ("dataset", dataset)) if value is not None)
    description = Description(batches.classes, batches.shape, given)
    module = _module(build(config, description) if model is None else model, config, batches, world)
    _check_forward(module.model, config, description)
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
                folder.claim(config, description)
        outcome = _trained(trainer, module, batches, checkpoint)
        if folder is not None and rank == 0:
            folder.finish(outcome, module.model)
    return outcome


def _trained(trainer: Trainer, module: Classifier, batches: Source, checkpoint: Path | None) -> Outcome:
    """Train to the end, test, and leave the population of the last test in the model."""
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    outcome = Outcome(module.config.to_dict(), batches.classes, parameters)
    tests = list(batches.tests.values())
    try:
        trainer.fit(module, batches.train, tests, ckpt_path=checkpoint)
        if tests and not module.history[-1].tests():
            trainer.validate(module, tests, verbose=False)
            module.record_test(module.history[-1])
        if module.calibration is not None:
            module.to(trainer.strategy.root_device).eval().recalibrate()
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


def _done(config: Train, folder: RunFolder) -> Outcome | None:
    """The outcome of a run that is done; none where a file of it is damaged, and so must be made again."""
    try:
        done = folder.outcome() if folder.weights() is not None else None
    except OSError:
        return None
    if done is not None:
        folder.check_same(done.config, config)
        say(config, f"{folder.path} is done; its numbers are in outcome.json.")
    return done


def _checkpoint(config: Train, folder: RunFolder, module: Classifier, rank: int) -> Path | None:
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


def _check_forward(model: nn.Module, config: Train, description: Description) -> None:
    """Refuse a net that does not take the images or has other outputs, before anything is begun."""
    example = next(model.parameters(), torch.empty(0))
    images = torch.zeros(2, *description.shape, dtype=example.dtype, device=example.device)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model.eval()(images)
    except RuntimeError as error:
        raise ValueError(
            f"expected a net that takes images of {'×'.join(map(str, description.shape))}, as {config.dataset} has "
            f"(got {config.net}, which fails: {error}); choose another net"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if logits.shape[1:] != (description.classes,):
        raise ValueError(
            f"expected a net with {description.classes} outputs, as {config.dataset} has classes (got outputs of shape "
            f"{tuple(logits.shape[1:])})"
        )


def _module(model: nn.Module, config: Train, batches: Source, world: int) -> Classifier:
    module = Classifier(model, config, batches.classes, batches.normalisation, batches.tests)
    if number := recalibration.images(config, model):
        module.calibration = batches.calibration(number)
    module.steps_per_epoch = len(batches.train)
    module.total_steps = min(config.epochs * len(batches.train), config.steps or 2**62)
    module.images_per_step = batches.batch_size
    if config.sync and world == 1:
        raise ValueError("expected several processes, started by torchrun, for sync (got one); leave it out")
    return module
