"""What a run shows: a bar on a terminal, and a line an epoch."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.outcome import Epoch
from whitenorm_lab.training.task import Task


def progress(config: RunConfig) -> list[Callback]:
    """The callbacks that show a run, if it is to be shown."""
    if config.quiet:
        return []
    bar: list[Callback] = [RichProgressBar(leave=False)] if config.progress and sys.stdout.isatty() else []
    return [*bar, Lines()]


def say(config: RunConfig, line: str) -> None:
    """A line for the user, from the first process."""
    if not config.quiet and os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


class Lines(Callback):
    """A line an epoch: numbers, speed, and the time that is left."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start, self.first = time.monotonic(), trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show(trainer, pl_module)

    def _show(self, trainer: Trainer, pl_module: LightningModule) -> None:
        history: list[Epoch] = pl_module.history  # type: ignore[assignment]
        if not history or trainer.global_step == self.first or not trainer.is_global_zero:
            return
        last, elapsed = history[-1], time.monotonic() - self.start
        total: int = pl_module.total_steps  # type: ignore[assignment]
        left = elapsed / (last.step - self.first) * (total - last.step)
        task: Task[Any] = pl_module.task  # type: ignore[assignment]
        line = f"epoch {last.epoch}/{trainer.max_epochs}: train {task.words(last.train)}"
        for name, numbers in last.tests.items():
            line += f", {name} {task.words(numbers)}"
        line += f", lr {last.lr:.3g}, {last.examples_per_second:.0f} {task.unit}/s, "
        if last.recalibrate_seconds:
            line += f"recalibrated in {last.recalibrate_seconds:.2g} s, "
        print(f"{line}{timedelta(seconds=round(left))} left", flush=True)
