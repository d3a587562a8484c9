"""The lightning module: loss, scores, optimizer, and what a checkpoint holds besides weights."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import lightning
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.lab.training import recalibration, schedules
from whitenorm.lab.training.batches import Batch, crop_and_flip, mixing
from whitenorm.lab.training.config import Train
from whitenorm.lab.training.outcome import DivergenceError, Epoch
from whitenorm.lab.training.scores import Scores
from whitenorm.lab.training.sync import synchronise_
from whitenorm.layers.base import unchanged_buffers

# On a GPU, looking at the loss waits for it.
_LOOK_EVERY = 50


class Classifier(lightning.LightningModule):
    """Training and test steps of a classifier, and its history.

    Before a test, population statistics are taken from ``calibration``, batches of training images; after it the
    running ones are back, so that tests leave no trace in training.
    """

    calibration: Iterable[Any] | None = None
    images_per_step = 0
    steps_per_epoch = total_steps = 1

    def __init__(
        self,
        model: nn.Module,
        config: Train,
        classes: int,
        normalisation: tuple[Tensor, Tensor] | None,
        tests: Iterable[str] = ("test",),
    ) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.train_scores = Scores(classes)
        self.test_scores = nn.ModuleDict({name: Scores(classes) for name in tests})
        self.history: list[Epoch] = []
        self.normalised = normalisation is None
        mean, factor = normalisation or (torch.zeros(()), torch.ones(()))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("factor", factor, persistent=False)
        self._rng: dict[str, Any] | None = None
        self._recalibrated = 0.0
        if config.precision == "64":
            # Before a checkpoint is loaded: lightning's own conversion comes after.
            self.double()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Batch:
        batch = Batch(*batch)
        if self.normalised:
            return batch
        images = (batch.images.to(self.mean.dtype) - self.mean) * self.factor
        if batch.draws is not None:
            images = crop_and_flip(images, batch.draws)
        return Batch(images, batch.labels)

    def setup(self, stage: str) -> None:
        if self.config.sync:
            synchronise_(self.model, self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels, _ = batch
        smoothing = self.config.label_smoothing
        if self.config.mixup:
            share, order = mixing(self.config.mixup, self.config.seed, self.global_step, number=len(labels))
            order = order.to(labels.device)
            logits = self.model(torch.lerp(images[order], images, share))
            loss = share * F.cross_entropy(logits, labels, label_smoothing=smoothing)
            loss = loss + (1 - share) * F.cross_entropy(logits, labels[order], label_smoothing=smoothing)
        else:
            logits = self.model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        self.train_scores.update(loss.detach(), logits.detach(), labels)
        if loss.device.type == "cpu" or self.global_step % _LOOK_EVERY == 0:
            self.check_finite()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step == self.total_steps:
            self.trainer.should_stop = True

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        images, labels, _ = batch
        if len(labels):
            logits = self.model(images)
            scores = list(self.test_scores.values())[dataloader_idx]
            scores.update(F.cross_entropy(logits, labels), logits, labels)  # type: ignore[operator]

    def recalibrate(self) -> None:
        """Take the population statistics from the calibration images, for good."""
        start = time.perf_counter()
        with self.trainer.precision_plugin.forward_context():
            recalibration.recalibrate(self.model, self._inputs(self.calibration or ()))
        self._recalibrated = time.perf_counter() - start

    def _inputs(self, batches: Iterable[Any]) -> Iterator[Tensor]:
        for batch in batches:
            images, labels = self.trainer.precision_plugin.convert_input([batch[0], batch[1]])
            yield self.on_after_batch_transfer((images.to(self.device), labels), 0).images

    def check_finite(self) -> None:
        """Raise if the loss was NaN or infinite in this epoch."""
        loss = self.train_scores.loss
        if not math.isfinite(loss):
            lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            raise DivergenceError(
                f"the loss is {float(loss)} at step {self.global_step + 1}, with learning rate {lr:g}; use a lower "
                "learning rate, a warm-up, or a larger eps of the norm. The last checkpoint before is whole"
            )

    def configure_optimizers(self) -> Any:
        config, parameters = self.config, self.model.parameters()
        optimizer: torch.optim.Optimizer
        if config.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, config.lr, weight_decay=config.weight_decay)
        else:
            optimizer = torch.optim.SGD(
                parameters, config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
            )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: schedules.factor(config, step, self.steps_per_epoch, self.total_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

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
        images = (self.global_step - self._first) * self.images_per_step
        train = self.train_scores.compute()
        epoch = Epoch(self.current_epoch + 1, self.global_step, self._lr, train["loss"], train["accuracy"])
        epoch.seconds, epoch.images_per_second = seconds, images / seconds
        if self._tested:
            self.record_test(epoch)
        self.history.append(epoch)
        numbers = {name: float(value) for name, value in asdict(epoch).items() if value is not None}
        for logger in self.loggers:
            logger.log_metrics(numbers, self.global_step)
            logger.save()

    def record_test(self, epoch: Epoch) -> None:
        """The test scores, into an epoch's numbers."""
        for name, scores in self.test_scores.items():
            for what, value in scores.compute().items():  # type: ignore[operator]
                setattr(epoch, f"{name}_{what}", value)
        epoch.recalibrate_seconds = self._recalibrated

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["whitenorm"] = {
            "config": self.config.to_dict(),
            "history": [asdict(epoch) for epoch in self.history],
            "scores": self.train_scores.sums(),
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
        # The sums are of all processes together.
        if self.trainer.is_global_zero:
            self.train_scores.load(state["scores"])
