"""A run's folder: its configuration, which must stay the same, and its results."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whitenorm.lab.training.checkpoints import write
from whitenorm.lab.training.config import ASIDE, Train
from whitenorm.lab.training.outcome import Outcome


class RunFolder:
    """``config.json``, ``outcome.json`` when done, ``weights.pt``, ``checkpoints/`` and ``logs/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def claim(self, config: Train, writes: bool = True) -> None:
        """Take the folder for a configuration; one of another configuration is refused."""
        new, file = config.to_dict(), self.path / "config.json"
        if not file.exists():
            if writes:
                write(file, (json.dumps(new, indent=2) + "\n").encode())
            return
        old = self._read(file)
        differing = [name for name in new if name not in ASIDE and old.get(name) != new[name]]
        if differing:
            listed = ", ".join(f"{name} (was {old.get(name)!r}, now {new[name]!r})" for name in differing)
            raise ValueError(
                f"expected the configuration that {self.path} was made with (got other values of {listed}); choose "
                "another --folder, or remove that one"
            )

    def outcome(self) -> Outcome | None:
        """The results, if the run is done."""
        file = self.path / "outcome.json"
        return Outcome.from_dict(self._read(file)) if file.exists() else None

    def finish(self, outcome: Outcome, model: nn.Module) -> None:
        """Write the weights, and then the outcome, which says that the run is done."""
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        write(self.path / "weights.pt", buffer.getvalue())
        write(self.path / "outcome.json", (json.dumps(outcome.to_dict(), indent=2) + "\n").encode())

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:
            raise OSError(f"expected JSON in {file} (got something else: {error}); remove it") from error
        return content
