"""A run's folder: its configuration, which must stay the same, and its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from whitenorm_lab import checksum, tasks
from whitenorm_lab.training.checkpoints import AnotherRunError, newest_whole, saved, set_aside, write
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.outcome import Outcome

_T = TypeVar("_T")


class RunFolder:
    """``config.json``, ``outcome.json`` when done, ``weights.pt``, ``checkpoints/`` and ``logs/``.

    All have checksums. What does not match is an OSError where it is read, and renamed where a run goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._config, self._outcome, self._weights = (
            path / name for name in ("config.json", "outcome.json", "weights.pt")
        )

    def check(self, config: RunConfig) -> None:
        """Refuse a folder of another configuration; one without a checkpoint or an outcome is nobody's."""
        if not self._config.exists() or not (self._outcome.exists() or saved(self.checkpoints)):
            return
        try:
            content = _read(self._config, _json, dict)
            old = self.config().to_dict() if "task" in content else content
        except OSError:
            # Checkpoints have it too.
            return
        self.check_same(old, config)

    def check_same(self, old: dict[str, Any], config: RunConfig) -> None:
        """Refuse another configuration than that of the folder, as JSON has it.

        Options that an older version had not were as their defaults are.
        """
        if "task" not in old:
            raise AnotherRunError(
                f"expected a run that this version can go on with (got {self.path}, a run of an earlier one); choose "
                "another --folder, or remove that one"
            )
        old, new = {**type(config)().to_dict(), **old}, config.to_dict()
        differing = [name for name in new if name not in config.aside and old[name] != new[name]]
        if differing:
            listed = ", ".join(f"{name} (was {old[name]!r}, now {new[name]!r})" for name in differing)
            raise AnotherRunError(
                f"expected the configuration that {self.path} was made with (got other values of {listed}); choose "
                "another --folder, or remove that one"
            )

    def claim(self, config: RunConfig, description: dict[str, Any], given: Sequence[str]) -> None:
        """Take the folder for a configuration, its data's description, and what was handed to ``fit`` beside it."""
        content = {**config.to_dict(), "described": description, "given": list(given)}
        write(self._config, (json.dumps(checksum.add_checksum(content), indent=2) + "\n").encode())

    def mend(self, fits: Callable[[dict[str, Any]], object]) -> tuple[Path | None, list[str]]:
        """Where to go on from, if anywhere; what is damaged is renamed, with a line that says so for each."""
        lines = []
        for file, read in ((self._config, self.config), (self._outcome, self.outcome), (self._weights, self.weights)):
            if file.exists():
                try:
                    read()
                except OSError as error:
                    lines.append(f"{error} It is set aside as {set_aside(file).name}.")
        checkpoint, wrong = newest_whole(self.checkpoints, fits)
        for path, why in wrong.items():
            lines.append(f"{path} is not used: {why}. It is set aside as {set_aside(path).name}.")
        if wrong:
            lines.append("There is no checkpoint before it; training begins anew." if checkpoint is None else "")
        return checkpoint, [line for line in lines if line]

    def config(self) -> RunConfig:
        """The run's configuration."""

        def made(content: dict[str, Any]) -> RunConfig:
            if "task" not in content:
                raise ValueError("it names no task, as those of earlier versions")
            return tasks.load_config(
                {name: value for name, value in content.items() if name not in ("described", "given")}
            )

        if not self._config.exists():
            raise OSError(f"expected a folder of whitenorm-lab train (got {self.path}, which has no config.json)")
        return _read(self._config, _json, made)

    def description(self) -> dict[str, Any]:
        """What the run's model was built for."""
        return _read(self._config, _json, lambda content: dict(content["described"]))

    def given(self) -> tuple[str, ...]:
        """What was handed to ``fit``, of "model" and "dataset"."""
        return _read(self._config, _json, lambda content: tuple(content["given"]))

    def outcome(self) -> Outcome | None:
        """The results, if the run is done."""
        return _read(self._outcome, _json, Outcome.from_dict) if self._outcome.exists() else None

    def weights(self) -> dict[str, Tensor] | None:
        """The final weights, if the run is done."""
        return _read(self._weights, checksum.read_archive, dict) if self._weights.exists() else None

    def finish(self, outcome: Outcome, model: nn.Module) -> None:
        """Write the weights, and then the outcome, which says that the run is done."""
        write(self._weights, checksum.to_archive(model.state_dict()))
        write(self._outcome, (json.dumps(checksum.add_checksum(outcome.to_dict()), indent=2) + "\n").encode())


def _json(file: Path) -> dict[str, Any]:
    return checksum.verify_checksum(checksum.parse_json(file.read_bytes()))


def _read(file: Path, read: Callable[[Path], Any], made: Callable[[Any], _T]) -> _T:
    try:
        return made(read(file))
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(
            f"expected {file} as whitenorm-lab train writes it (got a damaged or foreign file: "
            f"{error}); give the training "
            "command again."
        ) from error
