"""Checkpoints that are whole or not there: written beside, synced, renamed; the newest whole one is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from whitenorm_lab import checksum

KEPT = 2
_KEYS = {"state_dict", "global_step", "epoch", "loops", "optimizer_states", "lr_schedulers", "whitenorm"}


class AnotherRunError(ValueError):
    """The folder, or a checkpoint in it, is that of another configuration."""


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


def set_aside(path: Path) -> Path:
    """Rename a file that is not used, so that nothing is lost, and return its new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    return path.rename(aside)


class WholeFiles(CheckpointIO):
    """Lightning's reading and writing of checkpoints, in one piece, with a checksum."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write(Path(path), checksum.to_archive(checkpoint))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = checksum.read_archive(Path(path))
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
        last = trainer.global_step == pl_module.total_steps
        inside = (batch_idx + 1) % trainer.num_training_batches and not last
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


def newest_whole(
    folder: Path, fits: Callable[[dict[str, Any]], object] = lambda checkpoint: None
) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is whole and fits, and those after it that are not, with what is wrong.

    Args:
        folder: of checkpoints.
        fits: raises a ValueError that says why a checkpoint is not to be used.

    Raises:
        AnotherRunError: as ``fits`` does, of a checkpoint that is whole and of another configuration.
    """
    wrong: dict[Path, str] = {}
    for path in reversed(saved(folder)):
        try:
            checkpoint = checksum.read_archive(path)
            missing = _KEYS - set(checkpoint) if isinstance(checkpoint, dict) else _KEYS
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            if not isinstance(checkpoint["whitenorm"], dict):
                raise ValueError("it is not one of whitenorm-lab train")
            fits(checkpoint)
        except AnotherRunError:
            raise
        # The last three come from what is in no order that is known.
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wrong[path] = str(error)
        else:
            return path, wrong
    return None, wrong
