"""Lightning's Trainer, built from a configuration."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from whitenorm_lab.training.checkpoints import AtomicCheckpointIO, SaveCheckpoints
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.progress import build_progress_callbacks


def build_trainer(
    config: RunConfig, folder: RunFolder | None, epochs: int, has_tests: bool, callbacks: Sequence[Callback]
) -> Trainer:
    """Build the Trainer for the processes that torchrun started; with a folder it logs and saves checkpoints."""
    if config.precision == "16-mixed" and (config.accelerator == "cpu" or not torch.accelerator.is_available()):
        raise ValueError("expected a GPU for precision 16-mixed (got a CPU); use bf16-mixed")
    world, local_world = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    all_callbacks: list[Callback] = [*callbacks, *build_progress_callbacks(config)]
    loggers: list[Any] = []
    if folder is not None:
        all_callbacks.append(SaveCheckpoints(folder.checkpoints, config.checkpoint_epochs, config.checkpoint_steps))
        loggers = [TensorBoardLogger(folder.path / "logs", "tensorboard"), CSVLogger(folder.path / "logs", "csv")]
    try:
        return Trainer(
            accelerator=config.accelerator,
            devices=local_world,
            num_nodes=world // local_world,
            strategy="ddp" if world > 1 else "auto",
            precision=config.precision,
            max_epochs=epochs,
            logger=loggers or False,
            callbacks=all_callbacks,
            plugins=[AtomicCheckpointIO()],
            default_root_dir=None if folder is None else folder.path,
            enable_checkpointing=folder is not None,
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in all_callbacks),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=config.test_every,
            gradient_clip_val=config.clip,
            limit_val_batches=1.0 if has_tests else 0,
            # Recalibration writes buffers before a test, which inference mode would forbid.
            inference_mode=False,
            use_distributed_sampler=False,
            log_every_n_steps=1,
        )
    except MisconfigurationException as error:
        raise ValueError(
            f"expected an accelerator of this machine (got accelerator={config.accelerator!r}): {error}"
        ) from error


@contextmanager
def silence_lightning() -> Iterator[None]:
    """Silence Lightning's messages about the machine and itself."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning itself calls this deprecated function of torch.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated", FutureWarning)
            # A task's own networks stay in eval mode; the model is in training mode.
            warnings.filterwarnings("ignore", "Found .* in eval mode at the start of training")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
