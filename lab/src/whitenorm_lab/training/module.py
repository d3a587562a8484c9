"""The LightningModule of all tasks: steps, scores, optimizer, and the content of checkpoints beside the weights."""

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
from whitenorm_lab.training import norm_statistics
from whitenorm_lab.training.optimization import build_optimizer, compute_lr_factor
from whitenorm_lab.training.result import DivergenceError, Epoch
from whitenorm_lab.training.task import Task

# Reading the loss waits for the GPU.
_STEPS_PER_GPU_CHECK = 50
_LOGGED_FIELDS = ("epoch", "step", "lr", "seconds", "examples_per_second", "recalibrate_seconds")


class TrainingModule(lightning.LightningModule):
    """Training and test steps of a task's model, and the history of its epochs.

    Before a test, population statistics are recomputed from ``calibration``, batches of training examples. After the
    test the running statistics are restored, so that tests do not affect training.
    """

    calibration: Iterable[Any] | None = None
    examples_per_step = 0.0
    steps_per_epoch = total_steps = 1
    # The task's tensors are not part of a checkpoint. check_state compares those that are.
    strict_loading = False

    def __init__(self, model: nn.Module, task: Task[Any], tests: Iterable[str] = ("test",)) -> None:
        super().__init__()
        self.model, self.task, self.config = model, task, task.config
        self.train_scores = task.train_scores()
        self.test_scores = nn.ModuleDict({name: task.test_scores() for name in tests})
        self.history: list[Epoch] = []
        self._rng: dict[str, Any] | None = None
        self._recalibrate_seconds = 0.0
        if self.config.precision == "64":
            # Lightning would convert only after a checkpoint is loaded.
            self.double()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.task.prepare_batch(batch)

    def setup(self, stage: str) -> None:
        if self.config.sync:
            norm_statistics.synchronize_(self.model, self.device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.task.loss(self.model, batch, self.global_step, self.train_scores)
        if loss.device.type == "cpu" or self.global_step % _STEPS_PER_GPU_CHECK == 0:
            self.check_finite()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step == self.total_steps:
            self.trainer.should_stop = True

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.task.test(self.model, batch, list(self.test_scores.values())[dataloader_idx])

    def recalibrate(self) -> None:
        """Recompute the population statistics from the calibration examples."""
        start = time.perf_counter()
        with self.trainer.precision_plugin.forward_context():
            norm_statistics.recalibrate(self.model, self._iterate_inputs(self.calibration or ()))
        self._recalibrate_seconds = time.perf_counter() - start

    def _iterate_inputs(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            batch = self.trainer.precision_plugin.convert_input(batch)
            yield self.task.inputs(self.task.prepare_batch(self.transfer_batch_to_device(batch, self.device, 0)))

    def check_finite(self) -> None:
        """Raise a DivergenceError if the loss was NaN or infinite in this epoch."""
        loss = self.train_scores.total("loss")
        if not math.isfinite(loss):
            lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            raise DivergenceError(
                f"the loss is {float(loss)} at step {self.global_step + 1}, with learning rate {lr:g}; use a lower "
                "learning rate, a warm-up, or a larger eps of the norm. The last checkpoint is from before"
            )

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self.config, self.task.parameter_groups(self.model))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: compute_lr_factor(self.config, step, self.steps_per_epoch, self.total_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        if self._rng is not None:
            torch.set_rng_state(self._rng["cpu"])
            if torch.cuda.is_available() and self._rng["cuda"]:
                torch.cuda.set_rng_state_all(self._rng["cuda"])
        self._start_epoch()

    def on_train_epoch_start(self) -> None:
        self.train_scores.reset()
        self._start_epoch()
        self._lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]

    def _start_epoch(self) -> None:
        self._start_time, self._start_step, self._test_seconds = time.perf_counter(), self.global_step, 0.0

    def on_validation_start(self) -> None:
        self._test_start_time = time.perf_counter()
        for scores in self.test_scores.values():
            scores.reset()  # type: ignore[operator]
        self._running_statistics = ExitStack()
        if self.calibration is not None:
            self._running_statistics.enter_context(unchanged_buffers(self.model))
            self.recalibrate()

    def on_validation_end(self) -> None:
        self._running_statistics.close()
        self._test_seconds = time.perf_counter() - self._test_start_time

    def on_train_epoch_end(self) -> None:
        self.check_finite()
        seconds = time.perf_counter() - self._start_time - self._test_seconds
        examples = (self.global_step - self._start_step) * self.examples_per_step
        epoch = Epoch(self.current_epoch + 1, self.global_step, self._lr, self.train_scores.compute())
        epoch.seconds, epoch.examples_per_second = seconds, examples / seconds
        if self._test_seconds:
            self.record_test(epoch)
        self.history.append(epoch)
        fields = {name: float(getattr(epoch, name)) for name in _LOGGED_FIELDS}
        for logger in self.loggers:
            logger.log_metrics({**fields, **epoch.scores()}, self.global_step)
            logger.save()

    def record_test(self, epoch: Epoch) -> None:
        """Store the test scores in an epoch."""
        epoch.tests = self.compute_test_scores()
        epoch.recalibrate_seconds = self._recalibrate_seconds

    def compute_test_scores(self) -> dict[str, dict[str, float]]:
        """Return the scores of every test set."""
        return {
            name: {score: float(value) for score, value in scores.compute().items()}  # type: ignore[operator]
            for name, scores in self.test_scores.items()
        }

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the model's tensors only; those of the task follow from configuration and data."""
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if name.startswith("model.")}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["whitenorm"] = {
            "config": self.config.to_dict(),
            "history": [asdict(epoch) for epoch in self.history],
            "scores": self.train_scores.gather_totals(),
            "lr": self._lr,
            "rng": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            },
        }

    def check_state(self, checkpoint: dict[str, Any]) -> None:
        """Raise a ValueError if a checkpoint does not fit this module."""
        missing = {"config", "history", "scores", "lr", "rng"} - set(checkpoint["whitenorm"])
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}, like those of another version")
        try:
            history = [Epoch(**epoch) for epoch in checkpoint["whitenorm"]["history"]]
        except TypeError as error:
            raise ValueError(f"its history is from another version ({error})") from error
        steps = [epoch.step for epoch in history]
        if steps != sorted(set(steps)) or steps[-1:] > [checkpoint["global_step"]]:
            raise ValueError(f"its history does not fit its {checkpoint['global_step']} steps (got {steps[-3:]})")
        shapes = {name: value.shape for name, value in self.state_dict().items()}
        if shapes != {name: value.shape for name, value in checkpoint["state_dict"].items()}:
            raise ValueError("its weights are those of another net")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["whitenorm"]
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self._rng, self._lr = state["rng"], state["lr"]
        # The stored totals are those of all processes together.
        if self.trainer.is_global_zero:
            self.train_scores.load_totals(state["scores"])
