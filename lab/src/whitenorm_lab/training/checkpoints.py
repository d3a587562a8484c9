"""Atomic checkpoints with checksums, and the search for the newest intact one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from whitenorm_lab import checksum

NUM_KEPT = 2
_KEYS = {"state_dict", "global_step", "epoch", "loops", "optimizer_states", "lr_schedulers", "whitenorm"}


class AnotherRunError(ValueError):
    """A folder, or a checkpoint in it, belongs to another configuration."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either complete or absent: write beside it, sync to disk, rename."""
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
            f"{path} ({len(content) / 1e6:.1f} MB) could not be written: {error.strerror or error}. Earlier files are "
            "intact; free some space and run the same command again to resume",
        ) from error


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that nothing is lost, and return its new path."""
    number = 1
    while (new_path := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    return path.rename(new_path)


class AtomicCheckpointIO(CheckpointIO):
    """Reads and writes Lightning's checkpoints atomically and with a checksum."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), checksum.to_archive(checkpoint))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = checksum.read_archive(Path(path))
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class SaveCheckpoints(Checkpoint):
    """Save a checkpoint at intervals of epochs and of steps, and keep the last two.

    Lightning's ModelCheckpoint takes an interval of either epochs or steps, and would also save weights after a NaN
    loss.
    """

    def __init__(self, folder: Path, epochs: int, steps: int | None) -> None:
        self.folder, self.epochs, self.steps = folder, epochs, steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # After the last step of an epoch or of the run, on_train_epoch_end saves, when the scores are known.
        is_last = trainer.global_step == pl_module.total_steps
        is_inside_epoch = (batch_idx + 1) % trainer.num_training_batches and not is_last
        if self.steps is not None and is_inside_epoch and trainer.global_step % self.steps == 0:
            pl_module.check_finite()  # type: ignore[operator]
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.epochs == 0:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:09}.ckpt")
        if trainer.is_global_zero:
            for old in list_checkpoints(self.folder)[:-NUM_KEPT]:
                old.unlink()


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def find_newest_checkpoint(
    folder: Path, check: Callable[[dict[str, Any]], object] = lambda checkpoint: None
) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest intact checkpoint that passes a check, and the reasons why newer ones cannot be used.

    Args:
        folder: the folder of checkpoints.
        check: raises a ValueError that says why a checkpoint cannot be used.

    Raises:
        AnotherRunError: raised by ``check`` for an intact checkpoint of another configuration.
    """
    problems: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            checkpoint = checksum.read_archive(path)
            missing = _KEYS - set(checkpoint) if isinstance(checkpoint, dict) else _KEYS
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            if not isinstance(checkpoint["whitenorm"], dict):
                raise ValueError("it was not written by whitenorm-lab train")
            check(checkpoint)
        except AnotherRunError:
            raise
        # The last three are raised for intact files with unknown content.
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems[path] = str(error)
        else:
            return path, problems
    return None, problems
