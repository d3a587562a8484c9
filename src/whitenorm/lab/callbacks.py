"""Callbacks for lightning's Trainer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lightning import Callback, LightningModule, Trainer

from whitenorm.diagnostics.destinations import destination, scalars
from whitenorm.diagnostics.monitoring import Monitor
from whitenorm.diagnostics.reports import Inspection


class NormMonitor(Callback):
    """Log what :func:`whitenorm.diagnostics.inspect` reports while a Trainer fits, for some of the batches.

    The values go to the trainer's loggers as ``norm/<layer>/<measure>``, at the trainer's ``global_step`` when the
    batch begins, as its own metrics do. All else is as with :func:`whitenorm.diagnostics.monitor`, but for
    ``memory_share``, which is not measured.

    Args:
        every: watch the first batch and every so many after it; by default as often as takes 1 % of the time.
        to: instead of the loggers, what :func:`whitenorm.diagnostics.monitor` takes.
    """

    def __init__(self, every: int | None = None, to: Any = None) -> None:
        self.every, self.to = every, to
        self.monitor: Monitor | None = None
        self._open = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a fit: its monitor, and the files that it opened."""
        return {**self.__dict__, "monitor": None, "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=ExitStack())

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.to is None and not trainer.loggers:
            raise ValueError("expected a trainer with a logger (got none); give it one, or name a file: to=")
        if not trainer.is_global_zero:
            return

        def log(step: int, rows: Inspection) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(scalars(rows), step=step)

        write = log if self.to is None else self._open.enter_context(destination(self.to))
        self.monitor = Monitor(pl_module, write, self.every)
        self._open.callback(self.monitor.leave)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.monitor is not None:
            self.monitor.begin(trainer.global_step)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        if self.monitor is not None:
            self.monitor.complete()
            self.monitor.leave()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.monitor is not None:
            self.monitor.complete()
            self.monitor.finish()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._open.close()
