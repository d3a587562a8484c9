"""Train by a configuration."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from whitenorm.lab import nets
from whitenorm.lab.data import Dataset
from whitenorm.lab.training.checkpoints import Checkpoints, WholeFiles, newest_whole
from whitenorm.lab.training.config import Train
from whitenorm.lab.training.folder import RunFolder
from whitenorm.lab.training.module import Classifier
from whitenorm.lab.training.outcome import DivergenceError, Outcome
from whitenorm.lab.training.progress import progress, say
from whitenorm.lab.training.sources import Source, source


def fit(
    config: Train,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train a net and return its numbers.

    With a folder, a run that was stopped goes on from its last checkpoint, and one that is done returns its outcome.

    Args:
        config: the run.
        model: trained in place of the net that the configuration names.
        dataset: in place of the data that it names.
        callbacks: lightning's, to watch training with.

    Raises:
        DivergenceError: the loss is NaN or infinite; its ``outcome`` has the epochs before.

    Example::

        >>> outcome = fit(Train(net="mlp-16", data="digits", epochs=1, progress=False))
        >>> outcome.test_accuracy > 0.5
        True
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    folder = None if config.folder is None else RunFolder(config.folder)
    checkpoint = None
    if folder is not None:
        folder.claim(config, writes=rank == 0)
        done = folder.outcome()
        if done is not None:
            say(config, f"{folder.path} is done; its numbers are in outcome.json.")
            return done
        checkpoint = _checkpoint(config, folder)

    torch.manual_seed(config.seed)
    batches = source(config, dataset, lambda: trainer.global_step, rank, world)
    module = _module(model or _net(config, batches), config, batches, world)
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    outcome = Outcome(config.to_dict(), batches.classes, parameters)
    with _quiet():
        trainer = _trainer(config, folder, batches, world, callbacks)
        try:
            trainer.fit(module, batches.train, batches.test, ckpt_path=checkpoint)
            if len(batches.test) and module.history[-1].test_accuracy is None:
                trainer.validate(module, batches.test, verbose=False)
                module.record_test(module.history[-1])
        except DivergenceError as error:
            error.outcome = outcome
            raise
        finally:
            outcome.epochs = module.history
            batches.close()
    if folder is not None and rank == 0:
        folder.finish(outcome, module.model)
    return outcome


def _checkpoint(config: Train, folder: RunFolder) -> Path | None:
    """Where to go on from, if anywhere."""
    checkpoint, unreadable = newest_whole(folder.checkpoints)
    for line in unreadable:
        say(config, line)
    if checkpoint is not None:
        say(config, f"Going on from {checkpoint}.")
    return checkpoint


def _net(config: Train, batches: Source) -> nn.Module:
    return nets.build(
        config.net,
        batches.classes,
        config.norm,
        config.where,
        shape=batches.shape,
        activation=config.activation,
        width=config.width,
        dropout=config.dropout,
        norm_last=config.norm_last,
        norm_options=config.norm_options(),
    )


def _module(model: nn.Module, config: Train, batches: Source, world: int) -> Classifier:
    module = Classifier(model, config, batches.classes, batches.normalisation)
    module.steps_per_epoch = len(batches.train)
    module.total_steps = min(config.epochs * len(batches.train), config.steps or 2**62)
    module.images_per_step = batches.batch_size
    if config.sync and world == 1:
        raise ValueError("expected several processes, started by torchrun, for sync (got one); leave it out")
    return module


def _trainer(
    config: Train, folder: RunFolder | None, batches: Source, world: int, callbacks: Sequence[Callback]
) -> Trainer:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    own: list[Callback] = [*callbacks, *progress(config)]
    if folder is not None:
        own.append(Checkpoints(folder.checkpoints, config.checkpoint_epochs, config.checkpoint_steps))
    loggers: list[Any] = []
    if folder is not None:
        loggers = [TensorBoardLogger(folder.path / "logs", "tensorboard"), CSVLogger(folder.path / "logs", "csv")]
    try:
        return Trainer(
            accelerator=config.accelerator,
            devices=local,
            num_nodes=world // local,
            strategy="ddp" if world > 1 else "auto",
            precision=config.precision,
            max_epochs=config.epochs,
            max_steps=config.steps or -1,
            logger=loggers or False,
            callbacks=own,
            plugins=[WholeFiles()],
            default_root_dir=None if folder is None else folder.path,
            enable_checkpointing=folder is not None,
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in own),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=config.test_every,
            limit_val_batches=1.0 if len(batches.test) else 0,
            use_distributed_sampler=False,
            log_every_n_steps=1,
        )
    except MisconfigurationException as error:
        raise ValueError(
            f"expected what this machine can run (got accelerator={config.accelerator!r}): {error}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without lightning's lines about the machine and itself."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning's own use of torch's pytrees.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
