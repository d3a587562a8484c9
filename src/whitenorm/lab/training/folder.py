"""A run's folder: its configuration, which must stay the same, and its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from whitenorm.lab import sealed
from whitenorm.lab.training.checkpoints import AnotherRunError, newest_whole, saved, set_aside, write
from whitenorm.lab.training.config import ASIDE, Train
from whitenorm.lab.training.outcome import Outcome

_T = TypeVar("_T")


@dataclass(frozen=True)
class Description:
    """What a net must know of its data, and what was handed to ``fit`` beside the configuration."""

    classes: int
    shape: tuple[int, int, int]
    given: tuple[str, ...] = ()
    """"model" and "dataset"."""


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

    def check(self, config: Train) -> None:
        """Refuse a folder of another configuration; one without a checkpoint or an outcome is nobody's."""
        if not self._config.exists() or not (self._outcome.exists() or saved(self.checkpoints)):
            return
        try:
            old = self.config()
        except OSError:
            # Checkpoints have it too.
            return
        self.check_same(old.to_dict(), config)

    def check_same(self, old: dict[str, Any], config: Train) -> None:
        """Refuse another configuration than that of the folder, as JSON has it."""
        new = config.to_dict()
        differing = [name for name in new if name not in ASIDE and old.get(name) != new[name]]
        if differing:
            listed = ", ".join(f"{name} (was {old.get(name)!r}, now {new[name]!r})" for name in differing)
            raise AnotherRunError(
                f"expected the configuration that {self.path} was made with (got other values of {listed}); choose "
                "another --folder, or remove that one"
            )

    def claim(self, config: Train, description: Description) -> None:
        """Take the folder for a configuration."""
        content = {**config.to_dict(), "described": {**asdict(description), "shape": list(description.shape)}}
        content["described"]["given"] = list(description.given)
        write(self._config, (json.dumps(sealed.packed(content), indent=2) + "\n").encode())

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

    def config(self) -> Train:
        """The run's configuration."""

        def made(content: dict[str, Any]) -> Train:
            return Train.from_dict({name: value for name, value in content.items() if name != "described"})

        if not self._config.exists():
            raise OSError(f"expected a folder of whitenorm train (got {self.path}, which has no config.json)")
        return _read(self._config, _json, made)

    def description(self) -> Description:
        """What the run's net was built for."""

        def made(content: dict[str, Any]) -> Description:
            described = content["described"]
            return Description(described["classes"], tuple(described["shape"]), tuple(described["given"]))

        return _read(self._config, _json, made)

    def outcome(self) -> Outcome | None:
        """The results, if the run is done."""
        return _read(self._outcome, _json, Outcome.from_dict) if self._outcome.exists() else None

    def weights(self) -> dict[str, Tensor] | None:
        """The final weights, if the run is done."""
        return _read(self._weights, sealed.read_archive, dict) if self._weights.exists() else None

    def finish(self, outcome: Outcome, model: nn.Module) -> None:
        """Write the weights, and then the outcome, which says that the run is done."""
        write(self._weights, sealed.archive(model.state_dict()))
        write(self._outcome, (json.dumps(sealed.packed(outcome.to_dict()), indent=2) + "\n").encode())


def _json(file: Path) -> dict[str, Any]:
    return sealed.unpacked(json.loads(file.read_bytes()))


def _read(file: Path, read: Callable[[Path], Any], made: Callable[[Any], _T]) -> _T:
    try:
        return made(read(file))
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(
            f"expected {file} as whitenorm train writes it (got a damaged or foreign file: {error}); give the training "
            "command again."
        ) from error
