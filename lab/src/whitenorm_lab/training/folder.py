"""Folder of a run: its configuration, checkpoints and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from whitenorm_lab import checksum, tasks
from whitenorm_lab.training.checkpoints import (
    AnotherRunError,
    find_newest_checkpoint,
    list_checkpoints,
    set_aside,
    write_atomically,
)
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.result import TrainingResult

_T = TypeVar("_T")
# Names of version 0.2 in config.json and outcome.json.
_RENAMED = {"described": "description", "given": "overrides"}


class RunFolder:
    """Folder with config.json, outcome.json and weights.pt once the run is done, checkpoints/ and logs/.

    All files but the logs have checksums. Reading a damaged file raises an OSError; a run that resumes renames it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._config, self._result, self._weights = (
            path / name for name in ("config.json", "outcome.json", "weights.pt")
        )

    def check_config(self, config: RunConfig) -> None:
        """Raise an AnotherRunError if the folder belongs to another configuration.

        A folder without a checkpoint or a result belongs to none.
        """
        if not self._config.exists() or not (self._result.exists() or list_checkpoints(self.checkpoints)):
            return
        try:
            content = _read(self._config, _read_json, dict)
            old = self.read_config().to_dict() if "task" in content else content
        except OSError:
            # The checkpoints store the configuration too.
            return
        self.check_same_config(old, config)

    def check_same_config(self, old: dict[str, Any], config: RunConfig) -> None:
        """Raise an AnotherRunError if a stored configuration differs in anything that affects the numbers.

        Options that an older version lacked count as their defaults.
        """
        if "task" not in old:
            raise AnotherRunError(
                f"expected a run that this version can resume (got {self.path}, a run of an earlier version); choose "
                "another --folder, or remove that one"
            )
        old, new = {**type(config)().to_dict(), **old}, config.to_dict()
        differing = [name for name in new if name not in config.neutral_fields and old[name] != new[name]]
        if differing:
            listed = ", ".join(f"{name} (was {old[name]!r}, now {new[name]!r})" for name in differing)
            raise AnotherRunError(
                f"expected the configuration of the run in {self.path} (got other values of {listed}); choose another "
                "--folder, or remove that one"
            )

    def write_config(self, config: RunConfig, description: dict[str, Any], overrides: Sequence[str]) -> None:
        """Write the configuration, the description of the data, and the names of ``fit``'s arguments beside it."""
        self._write_json(self._config, {**config.to_dict(), "description": description, "overrides": list(overrides)})

    def repair(self, check: Callable[[dict[str, Any]], object]) -> tuple[Path | None, list[str]]:
        """Rename damaged files; return the checkpoint to resume from, if any, and one line per renamed file."""
        lines = []
        for file, read in (
            (self._config, self.read_config),
            (self._result, self.read_result),
            (self._weights, self.read_weights),
        ):
            if file.exists():
                try:
                    read()
                except OSError as error:
                    lines.append(f"{error} It is renamed to {set_aside(file).name}.")
        checkpoint, problems = find_newest_checkpoint(self.checkpoints, check)
        for path, reason in problems.items():
            lines.append(f"{path} is not used: {reason}. It is renamed to {set_aside(path).name}.")
        if problems and checkpoint is None:
            lines.append("There is no earlier checkpoint; training starts from the beginning.")
        return checkpoint, lines

    def read_config(self) -> RunConfig:
        """Return the run's configuration."""

        def parse(content: dict[str, Any]) -> RunConfig:
            if "task" not in content:
                raise ValueError("it names no task, like those of earlier versions")
            others = ("description", "overrides")
            return tasks.load_config({name: value for name, value in content.items() if name not in others})

        if not self._config.exists():
            raise OSError(f"expected a folder of whitenorm-lab train (got {self.path}, which has no config.json)")
        return _read(self._config, _read_json, parse)

    def read_description(self) -> dict[str, Any]:
        """Return what the run's model was built for."""
        return _read(self._config, _read_json, lambda content: dict(content["description"]))

    def read_overrides(self) -> tuple[str, ...]:
        """Return which of "model" and "dataset" were passed to ``fit`` in place of the configured ones."""
        return _read(self._config, _read_json, lambda content: tuple(content["overrides"]))

    def read_result(self) -> TrainingResult | None:
        """Return the result, or None if the run is not done."""
        return _read(self._result, _read_json, TrainingResult.from_dict) if self._result.exists() else None

    def read_weights(self) -> dict[str, Tensor] | None:
        """Return the final weights, or None if the run is not done."""
        return _read(self._weights, checksum.read_archive, dict) if self._weights.exists() else None

    def write_results(self, result: TrainingResult, model: nn.Module) -> None:
        """Write the weights, and then the result, which marks the run as done."""
        write_atomically(self._weights, checksum.to_archive(model.state_dict()))
        self._write_json(self._result, result.to_dict())

    def _write_json(self, file: Path, content: dict[str, Any]) -> None:
        write_atomically(file, (json.dumps(checksum.add_checksum(content), indent=2) + "\n").encode())


def _read_json(file: Path) -> dict[str, Any]:
    content = checksum.verify_checksum(checksum.parse_json(file.read_bytes()))
    return {_RENAMED.get(name, name): value for name, value in content.items()}


def _read(file: Path, read: Callable[[Path], Any], parse: Callable[[Any], _T]) -> _T:
    try:
        return parse(read(file))
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(
            f"expected {file} as whitenorm-lab train writes it (got a damaged or foreign file: {error}); run the "
            "training command again."
        ) from error
