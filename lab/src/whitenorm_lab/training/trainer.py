"""Lightning's trainer for a configuration, and its silence."""

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

from whitenorm_lab.training.checkpoints import Checkpoints, WholeFiles
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.progress import progress


def make_trainer(
    config: RunConfig, folder: RunFolder | None, epochs: int, tests: bool, callbacks: Sequence[Callback]
) -> Trainer:
    """The trainer: on what there is, over the processes that torchrun started, with logs if there is a folder."""
    if config.precision == "16-mixed" and (config.accelerator == "cpu" or not torch.accelerator.is_available()):
        raise ValueError("expected a GPU for precision 16-mixed (got a CPU); use bf16-mixed")
    world, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    own: list[Callback] = [*callbacks, *progress(config)]
    loggers: list[Any] = []
    if folder is not None:
        own.append(Checkpoints(folder.checkpoints, config.checkpoint_epochs, config.checkpoint_steps))
        loggers = [TensorBoardLogger(folder.path / "logs", "tensorboard"), CSVLogger(folder.path / "logs", "csv")]
    try:
        return Trainer(
            accelerator=config.accelerator,
            devices=local,
            num_nodes=world // local,
            strategy="ddp" if world > 1 else "auto",
            precision=config.precision,
            max_epochs=epochs,
            logger=loggers or False,
            callbacks=own,
            plugins=[WholeFiles()],
            default_root_dir=None if folder is None else folder.path,
            enable_checkpointing=folder is not None,
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in own),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=config.test_every,
            gradient_clip_val=config.clip,
            limit_val_batches=1.0 if tests else 0,
            # Statistics are written before a test.
            inference_mode=False,
            use_distributed_sampler=False,
            log_every_n_steps=1,
        )
    except MisconfigurationException as error:
        raise ValueError(f"expected what this machine has (got accelerator={config.accelerator!r}): {error}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without lightning's lines about the machine and itself."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning's own use of torch's pytrees.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated", FutureWarning)
            # Of a task's own networks, which are not trained; the model is in training mode.
            warnings.filterwarnings("ignore", "Found .* in eval mode at the start of training")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
