"""A run's folder: its configuration, which must stay the same, and its results."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.lab.training.checkpoints import write
from whitenorm.lab.training.config import ASIDE, Train
from whitenorm.lab.training.outcome import Outcome


@dataclass(frozen=True)
class Description:
    """What a net must know of its data, and what was handed to ``fit`` beside the configuration."""

    classes: int
    shape: tuple[int, int, int]
    given: tuple[str, ...] = ()
    """"model" and "dataset"."""


class RunFolder:
    """``config.json``, ``outcome.json`` when done, ``weights.pt``, ``checkpoints/`` and ``logs/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._config, self._outcome, self._weights = (
            path / name for name in ("config.json", "outcome.json", "weights.pt")
        )

    def check(self, config: Train) -> None:
        """Refuse a folder of another configuration."""
        if not self._config.exists():
            return
        old, new = self.config().to_dict(), config.to_dict()
        differing = [name for name in new if name not in ASIDE and old[name] != new[name]]
        if differing:
            listed = ", ".join(f"{name} (was {old[name]!r}, now {new[name]!r})" for name in differing)
            raise ValueError(
                f"expected the configuration that {self.path} was made with (got other values of {listed}); choose "
                "another --folder, or remove that one"
            )

    def claim(self, config: Train, description: Description) -> None:
        """Take the folder for a configuration."""
        if not self._config.exists():
            content = {**config.to_dict(), "described": asdict(description)}
            write(self._config, (json.dumps(content, indent=2) + "\n").encode())

    def config(self) -> Train:
        """The run's configuration."""
        content = self._content()
        try:
            return Train.from_dict({name: value for name, value in content.items() if name != "described"})
        except (TypeError, ValueError) as error:
            raise OSError(f"expected a configuration of whitenorm train in {self._config} ({error})") from error

    def description(self) -> Description:
        """What the run's net was built for."""
        try:
            described = self._content()["described"]
            classes, shape, given = described["classes"], tuple(described["shape"]), tuple(described["given"])
        except (KeyError, TypeError) as error:
            raise OSError(
                f"expected the number of classes and the shape of images in {self._config} (got a file without them, "
                "as of an older version); train again"
            ) from error
        return Description(classes, shape, given)

    def outcome(self) -> Outcome | None:
        """The results, if the run is done."""
        return Outcome.from_dict(self._read(self._outcome)) if self._outcome.exists() else None

    def weights(self) -> dict[str, Tensor] | None:
        """The final weights, if the run is done."""
        if not self._weights.exists():
            return None
        state: dict[str, Tensor] = torch.load(self._weights, map_location="cpu", weights_only=True)
        return state

    def finish(self, outcome: Outcome, model: nn.Module) -> None:
        """Write the weights, and then the outcome, which says that the run is done."""
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        write(self._weights, buffer.getvalue())
        write(self._outcome, (json.dumps(outcome.to_dict(), indent=2) + "\n").encode())

    def _content(self) -> dict[str, Any]:
        if not self._config.exists():
            raise OSError(f"expected a folder of whitenorm train (got {self.path}, which has no config.json)")
        return self._read(self._config)

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            content = json.loads(file.read_text())
        except ValueError as error:
            raise OSError(f"expected JSON in {file} (got something else: {error}); remove it") from error
        if not isinstance(content, dict):
            raise OSError(f"expected a JSON object in {file} (got {type(content).__name__}); remove it")
        return content
