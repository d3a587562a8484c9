"""Checkpoints that are whole or not there: written beside, synced, renamed; the newest whole one is taken."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

KEPT = 2


def write(path: Path, content: bytes) -> None:
    """A file that is there in full or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"{path} ({len(content) / 1e6:.1f} MB) could not be written: {error.strerror or error}. What was there "
            "before is whole; make room and give the same command again to go on",
        ) from error


class WholeFiles(CheckpointIO):
    """Lightning's reading and writing of checkpoints, in one piece."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        # Through memory, as an error inside torch.save's own file writer hides the system's.
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write(Path(path), buffer.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoints(Checkpoint):
    """A checkpoint after every so many epochs and steps; the last two are kept."""

    def __init__(self, folder: Path, epochs: int, steps: int | None) -> None:
        self.folder, self.epochs, self.steps = folder, epochs, steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # The last one of an epoch, or of all, comes with the epoch's numbers.
        inside = (batch_idx + 1) % trainer.num_training_batches and not trainer.should_stop
        if self.steps is not None and inside and trainer.global_step % self.steps == 0:
            pl_module.check_finite()  # type: ignore[operator]
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.epochs == 0:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:09}.ckpt")
        if trainer.is_global_zero:
            for old in saved(self.folder)[:-KEPT]:
                old.unlink()


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that can be read, and what is to be said about those that cannot."""
    said = []
    for path in reversed(saved(folder)):
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        # A file cut short fails in as many ways as there are places to cut.
        except Exception as error:
            said.append(f"{path} is not whole ({type(error).__name__}); the checkpoint before it is used.")
        else:
            return path, said
    return None, said
