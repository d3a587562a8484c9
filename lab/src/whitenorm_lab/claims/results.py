"""Raw values of an experiment's runs: queries by settings, and storage in files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whitenorm_lab import checksum


@dataclass
class Run:
    """One run: its settings and seed, its raw values, and its time."""

    settings: dict[str, Any]
    seed: int
    values: dict[str, Any]
    seconds: float

    def key(self) -> str:
        """Return a string that identifies settings and seed."""
        return json.dumps([self.settings, self.seed], sort_keys=True)

    def is_equivalent(self, other: Run) -> bool:
        """Return whether another run computes the same values: it may differ in its ``variant``, which is only a name.

        Example::

            >>> run = Run({"variant": "BN", "lr": 0.1}, 0, {}, 0.0)
            >>> run.is_equivalent(Run({"variant": "BN, Res-20", "lr": 0.1}, 0, {}, 0.0))
            True
            >>> run.is_equivalent(Run({"lr": 0.1}, 1, {}, 0.0))
            False
        """
        return self.seed == other.seed and {**self.settings, "variant": ""} == {**other.settings, "variant": ""}


class Results(list[Run]):
    """Runs in the order of the plan."""

    def where(self, **settings: Any) -> Results:
        """Return the runs with these settings; raise ValueError if there are none.

        Example::

            >>> results = Results([Run({"norm": "BN", "lr": 0.1}, 0, {"loss": 2.0}, 1.0)])
            >>> results.where(norm="BN").values("loss")
            [2.0]
        """
        matching = Results(run for run in self if all(run.settings.get(k) == v for k, v in settings.items()))
        if not matching:
            raise ValueError(f"expected runs with {settings} (got none of {len(self)})")
        return matching

    def values(self, name: str, **settings: Any) -> list[Any]:
        """Return one value per run, in order."""
        return [run.values[name] for run in self.where(**settings)]

    def mean(self, name: str, **settings: Any) -> float:
        """Return the mean of a value over runs."""
        values = self.values(name, **settings)
        return sum(values) / len(values)

    def levels(self, setting: str) -> list[Any]:
        """Return the distinct values of a setting, in order."""
        return list(dict.fromkeys(run.settings[setting] for run in self if setting in run.settings))

    def best(self, over: str, by: str, **settings: Any) -> Results:
        """Return the runs at the level of one setting that has the lowest mean of a value over the seeds.

        This is the papers' grid search: the learning rate of each method is the one with the best mean over all seeds.
        A mean that is not finite is worse than all others.
        """
        runs = self.where(**settings)

        def compute_mean(level: Any) -> float:
            mean = runs.mean(by, **{over: level})
            return mean if math.isfinite(mean) else math.inf

        return runs.where(**{over: min(runs.levels(over), key=compute_mean)})


class Store:
    """Files of one experiment at one scale: completed runs of an interrupted call, results and figure."""

    def __init__(self, folder: Path, experiment: str, scale: str) -> None:
        self._root, self._scale = folder, scale
        self.results = folder / experiment / f"{scale}.json"
        self.picture = folder / experiment / f"{scale}.png"
        self._partial = folder / experiment / f"{scale}.partial.jsonl"

    def read_partial(self) -> list[Run]:
        """Return the completed runs of an interrupted call; skip lines that are cut off or damaged."""
        if not self._partial.exists():
            return []
        runs = []
        for line in self._partial.read_bytes().splitlines():
            try:
                runs.append(Run(**_from_json_values(checksum.verify_checksum(checksum.parse_json(line)))))
            except (ValueError, TypeError):
                continue
        return runs

    def read_runs_of(self, experiment: str) -> list[Run]:
        """Return all runs of another experiment at the same scale, those of an interrupted call first."""
        store = Store(self._root, experiment, self._scale)
        content = store.read()
        return store.read_partial() + ([] if content is None else content["runs"])

    def add(self, run: Run) -> None:
        """Append a completed run to the file, and wait until it is on the disk."""
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        with self._partial.open("a+b") as file:
            # Start a new line after one that was cut off.
            is_whole = file.tell() == 0 or self._partial.read_bytes().endswith(b"\n")
            line = json.dumps(checksum.add_checksum(to_json_values(asdict(run))))
            file.write(("" if is_whole else "\n").encode() + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def get_run_folder(self, run: Run) -> Path:
        """Return the folder for files from which an interrupted run resumes."""
        return self._partial.with_suffix("") / hashlib.sha256(run.key().encode()).hexdigest()[:12]

    def remove_partial(self) -> None:
        """Remove all files of an interrupted call."""
        self._partial.unlink(missing_ok=True)
        shutil.rmtree(self._partial.with_suffix(""), ignore_errors=True)

    def write(self, content: dict[str, Any], runs: Iterable[Run]) -> None:
        """Replace the results file atomically; each run is one line of it."""
        head = to_json_values(content)
        rows = [to_json_values(asdict(run)) for run in runs]
        digest = checksum.add_checksum({**head, "runs": rows})[checksum.KEY]
        head_text = json.dumps({**head, checksum.KEY: digest}, indent=1)[:-2]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        self.results.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.results.with_suffix(".json.tmp")
        temporary.write_text(f'{head_text},\n "runs": [\n  {lines}\n ]\n}}\n')
        temporary.replace(self.results)

    def read(self) -> dict[str, Any] | None:
        """Return the results with their runs as :class:`Results`, or None if there are none.

        Old results without a checksum are not verified.
        """
        if not self.results.exists():
            return None
        try:
            written = checksum.parse_json(self.results.read_bytes())
            content = _from_json_values(checksum.verify_checksum(written) if checksum.KEY in written else written)
            content["runs"] = Results(Run(**run) for run in content["runs"])
            missing = [name for name in _REQUIRED if name not in content]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(
                f"expected {self.results} to be results of whitenorm-lab reproduce ({error}); "
                f"remove it and run it again"
            ) from error
        return content


_REQUIRED = ("experiment", "title", "scale", "parameters", "finished", "seconds", "machine", "claims")
_NOT_FINITE = ("inf", "-inf", "nan")


def to_json_values(value: Any) -> Any:
    """Round floats to seven digits, about float32's precision, and replace those that are not finite by their names."""
    if isinstance(value, dict):
        return {key: to_json_values(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_values(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value


def _from_json_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_json_values(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_from_json_values(inner) for inner in value]
    return float(value) if value in _NOT_FINITE else value
