"""The lightning module of every task: steps, scores, optimizer, and what a checkpoint holds besides weights."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from whitenorm.layers import unchanged_buffers
from whitenorm_lab.training import recalibration, schedules
from whitenorm_lab.training.optimizers import optimizer
from whitenorm_lab.training.outcome import DivergenceError, Epoch
from whitenorm_lab.training.sync import synchronise_
from whitenorm_lab.training.task import Task

# On a GPU, looking at the loss waits for it.
_LOOK_EVERY = 50


class Training(lightning.LightningModule):
    """Training and test steps of a task's model, and its history.

    Before a test, population statistics are taken from ``calibration``, batches of training examples; after it the
    running ones are back, so that tests leave no trace in training.
    """

    calibration: Iterable[Any] | None = None
    per_step = 0.0
    steps_per_epoch = total_steps = 1
    # The task's own is no part of a checkpoint, and missing there; check_state compares what is.
    strict_loading = False

    def __init__(self, model: nn.Module, task: Task[Any], tests: Iterable[str] = ("test",)) -> None:
        super().__init__()
        self.model, self.task, self.config = model, task, task.config
        self.train_scores = task.train_scores()
        self.test_scores = nn.ModuleDict({name: task.test_scores() for name in tests})
        self.history: list[Epoch] = []
        self._rng: dict[str, Any] | None = None
        self._recalibrated = 0.0
        if self.config.precision == "64":
            # Before a checkpoint is loaded: lightning's own conversion comes after.
            self.double()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.task.on_device(batch)

    def setup(self, stage: str) -> None:
        if self.config.sync:
            synchronise_(self.model, self.device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.task.loss(self.model, batch, self.global_step, self.train_scores)
        if loss.device.type == "cpu" or self.global_step % _LOOK_EVERY == 0:
            self.check_finite()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step == self.total_steps:
            self.trainer.should_stop = True

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.task.test(self.model, batch, list(self.test_scores.values())[dataloader_idx])

    def recalibrate(self) -> None:
        """Take the population statistics from the calibration examples, for good."""
        start = time.perf_counter()
        with self.trainer.precision_plugin.forward_context():
            recalibration.recalibrate(self.model, self._inputs(self.calibration or ()))
        self._recalibrated = time.perf_counter() - start

    def _inputs(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            batch = self.trainer.precision_plugin.convert_input(batch)
            yield self.task.inputs(self.task.on_device(self.transfer_batch_to_device(batch, self.device, 0)))

    def check_finite(self) -> None:
        """Raise if the loss was NaN or infinite in this epoch."""
        loss = self.train_scores.total("loss")
        if not math.isfinite(loss):
            lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            raise DivergenceError(
                f"the loss is {float(loss)} at step {self.global_step + 1}, with learning rate {lr:g}; use a lower "
                "learning rate, a warm-up, or a larger eps of the norm. The last checkpoint before is whole"
            )

    def configure_optimizers(self) -> Any:
        made = optimizer(self.config, self.task.groups(self.model))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            made, lambda step: schedules.factor(self.config, step, self.steps_per_epoch, self.total_steps)
        )
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        if self._rng is not None:
            torch.set_rng_state(self._rng["cpu"])
            if torch.cuda.is_available() and self._rng["cuda"]:
                torch.cuda.set_rng_state_all(self._rng["cuda"])
        self._start, self._first, self._tested = time.perf_counter(), self.global_step, 0.0

    def on_train_epoch_start(self) -> None:
        self.train_scores.reset()
        self._start, self._first, self._tested = time.perf_counter(), self.global_step, 0.0
        self._lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]

    def on_validation_start(self) -> None:
        self._tests = time.perf_counter()
        for scores in self.test_scores.values():
            scores.reset()  # type: ignore[operator]
        self._restored = ExitStack()
        if self.calibration is not None:
            self._restored.enter_context(unchanged_buffers(self.model))
            self.recalibrate()

    def on_validation_end(self) -> None:
        self._restored.close()
        self._tested = time.perf_counter() - self._tests

    def on_train_epoch_end(self) -> None:
        self.check_finite()
        seconds = time.perf_counter() - self._start - self._tested
        examples = (self.global_step - self._first) * self.per_step
        epoch = Epoch(self.current_epoch + 1, self.global_step, self._lr, self.train_scores.compute())
        epoch.seconds, epoch.examples_per_second = seconds, examples / seconds
        if self._tested:
            self.record_test(epoch)
        self.history.append(epoch)
        others = {name: float(getattr(epoch, name)) for name in _LOGGED}
        for logger in self.loggers:
            logger.log_metrics({**others, **epoch.numbers()}, self.global_step)
            logger.save()

    def record_test(self, epoch: Epoch) -> None:
        """The test scores, into an epoch's numbers."""
        epoch.tests = self.tested()
        epoch.recalibrate_seconds = self._recalibrated

    def tested(self) -> dict[str, dict[str, float]]:
        """The test scores of every set."""
        return {
            name: {what: float(value) for what, value in scores.compute().items()}  # type: ignore[operator]
            for name, scores in self.test_scores.items()
        }

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Of the model alone: what the task computes with follows from configuration and data."""
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if name.startswith("model.")}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["whitenorm"] = {
            "config": self.config.to_dict(),
            "history": [asdict(epoch) for epoch in self.history],
            "scores": self.train_scores.kept(),
            "lr": self._lr,
            "rng": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            },
        }

    def check_state(self, checkpoint: dict[str, Any]) -> None:
        """A ValueError where a checkpoint is not one of this module's runs."""
        missing = {"config", "history", "scores", "lr", "rng"} - set(checkpoint["whitenorm"])
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}, as of another version")
        try:
            history = [Epoch(**epoch) for epoch in checkpoint["whitenorm"]["history"]]
        except TypeError as error:
            raise ValueError(f"its history is of another version ({error})") from error
        steps = [epoch.step for epoch in history]
        if steps != sorted(set(steps)) or steps[-1:] > [checkpoint["global_step"]]:
            raise ValueError(f"its history is not that of {checkpoint['global_step']} steps (got {steps[-3:]})")
        shapes = {name: value.shape for name, value in self.state_dict().items()}
        if shapes != {name: value.shape for name, value in checkpoint["state_dict"].items()}:
            raise ValueError("its weights are not those of this net")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["whitenorm"]
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self._rng, self._lr = state["rng"], state["lr"]
        # The totals are of all processes together.
        if self.trainer.is_global_zero:
            self.train_scores.load(state["scores"])


_LOGGED = ("epoch", "step", "lr", "seconds", "examples_per_second", "recalibrate_seconds")
