"""Progress of a run on the terminal: a bar, and one line per epoch."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.result import Epoch
from whitenorm_lab.training.task import Task


def build_progress_callbacks(config: RunConfig) -> list[Callback]:
    """Build the callbacks that show a run's progress; none if it is quiet."""
    if config.quiet:
        return []
    bar: list[Callback] = [RichProgressBar(leave=False)] if config.progress and sys.stdout.isatty() else []
    return [*bar, PrintEpochs()]


def print_line(config: RunConfig, line: str) -> None:
    """Print a line in the first process, unless the run is quiet."""
    if not config.quiet and os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


class PrintEpochs(Callback):
    """Print one line per epoch: scores, speed and remaining time."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start_time, self.start_step = time.monotonic(), trainer.global_step

    # An epoch's scores are complete only when the next one starts, or training ends.
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer, pl_module)

    def _print(self, trainer: Trainer, pl_module: LightningModule) -> None:
        history: list[Epoch] = pl_module.history  # type: ignore[assignment]
        if not history or trainer.global_step == self.start_step or not trainer.is_global_zero:
            return
        last, elapsed = history[-1], time.monotonic() - self.start_time
        total_steps: int = pl_module.total_steps  # type: ignore[assignment]
        remaining = elapsed / (last.step - self.start_step) * (total_steps - last.step)
        task: Task[Any] = pl_module.task  # type: ignore[assignment]
        line = f"epoch {last.epoch}/{trainer.max_epochs}: train {task.format_scores(last.train)}"
        for name, scores in last.tests.items():
            line += f", {name} {task.format_scores(scores)}"
        line += f", lr {last.lr:.3g}, {last.examples_per_second:.0f} {task.unit}/s, "
        if last.recalibrate_seconds:
            line += f"recalibrated in {last.recalibrate_seconds:.2g} s, "
        print(f"{line}{timedelta(seconds=round(remaining))} left", flush=True)
