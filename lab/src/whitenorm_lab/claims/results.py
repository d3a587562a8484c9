"""The raw values of an experiment's runs: asked by settings, kept in files."""

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
    """One run: its settings, its seed, what it gave, and how long it took."""

    settings: dict[str, Any]
    seed: int
    values: dict[str, Any]
    seconds: float

    def key(self) -> str:
        """The same for runs with the same settings and seed."""
        return json.dumps([self.settings, self.seed], sort_keys=True)

    def same(self, other: Run) -> bool:
        """Whether another run, maybe of another experiment, computes the same: all but the name it goes by there.

        Example::

            >>> run = Run({"variant": "BN", "lr": 0.1}, 0, {}, 0.0)
            >>> run.same(Run({"variant": "BN, Res-20", "lr": 0.1}, 0, {}, 0.0)), run.same(Run({"lr": 0.1}, 1, {}, 0.0))
            (True, False)
        """
        return self.seed == other.seed and {**self.settings, "variant": ""} == {**other.settings, "variant": ""}


class Results(list[Run]):
    """Runs, in the order of the plan."""

    def where(self, **settings: Any) -> Results:
        """The runs with these settings; an error when there are none.

        Example::

            >>> results = Results([Run({"norm": "BN", "lr": 0.1}, 0, {"loss": 2.0}, 1.0)])
            >>> results.where(norm="BN").values("loss")
            [2.0]
        """
        found = Results(run for run in self if all(run.settings.get(k) == v for k, v in settings.items()))
        if not found:
            raise ValueError(f"expected runs with {settings} (got none of {len(self)})")
        return found

    def values(self, name: str, **settings: Any) -> list[Any]:
        """One value a run, in order."""
        return [run.values[name] for run in self.where(**settings)]

    def mean(self, name: str, **settings: Any) -> float:
        """The mean over runs of a number."""
        values = self.values(name, **settings)
        return sum(values) / len(values)

    def levels(self, setting: str) -> list[Any]:
        """The distinct values of a setting, in order."""
        return list(dict.fromkeys(run.settings[setting] for run in self if setting in run.settings))

    def best(self, over: str, by: str, **settings: Any) -> Results:
        """The runs at the value of one setting that has the lowest mean of a number over the seeds.

        This is the papers' grid search: a learning rate is chosen for each method by the mean of all its seeds. A
        number that is not finite counts as worse than all others.
        """
        found = self.where(**settings)

        def badness(level: Any) -> float:
            mean = found.mean(by, **{over: level})
            return mean if math.isfinite(mean) else math.inf

        return found.where(**{over: min(found.levels(over), key=badness)})


class Store:
    """The files of one experiment at one scale: runs so far, results, picture."""

    def __init__(self, folder: Path, experiment: str, scale: str) -> None:
        self._place = folder, scale
        self.results = folder / experiment / f"{scale}.json"
        self.picture = folder / experiment / f"{scale}.png"
        self._partial = folder / experiment / f"{scale}.partial.jsonl"

    def done(self) -> list[Run]:
        """Runs of an interrupted call; a line that was cut off or damaged is as if it were not there."""
        if not self._partial.exists():
            return []
        runs = []
        for line in self._partial.read_bytes().splitlines():
            try:
                runs.append(Run(**_unpacked(checksum.verify_checksum(checksum.parse_json(line)))))
            except (ValueError, TypeError):
                continue
        return runs

    def beside(self, experiment: str) -> Store:
        """Those of another experiment, in the same folder and of the same scale."""
        folder, scale = self._place
        return Store(folder, experiment, scale)

    def all(self) -> list[Run]:
        """Runs of an interrupted call, and those of the results."""
        content = self.read()
        return self.done() + ([] if content is None else content["runs"])

    def add(self, run: Run) -> None:
        """Keep a finished run at once."""
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        with self._partial.open("a+b") as file:
            # After a line that was cut off, begin a new one.
            whole = file.tell() == 0 or self._partial.read_bytes().endswith(b"\n")
            line = json.dumps(checksum.add_checksum(kept(asdict(run))))
            file.write(("" if whole else "\n").encode() + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def folder(self, run: Run) -> Path:
        """Where a run may keep what it needs to go on."""
        return self._partial.with_suffix("") / hashlib.sha256(run.key().encode()).hexdigest()[:12]

    def forget(self) -> None:
        """Drop the runs of an interrupted call."""
        self._partial.unlink(missing_ok=True)
        shutil.rmtree(self._partial.with_suffix(""), ignore_errors=True)

    def write(self, content: dict[str, Any], runs: Iterable[Run]) -> None:
        """The results, whole or not at all, a line a run."""
        rows = [kept(asdict(run)) for run in runs]
        digest = checksum.add_checksum({**kept(content), "runs": rows})[checksum.KEY]
        head = json.dumps({**kept(content), checksum.KEY: digest}, indent=1)[:-2]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        self.results.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.results.with_suffix(".json.tmp")
        temporary.write_text(f'{head},\n "runs": [\n  {lines}\n ]\n}}\n')
        temporary.replace(self.results)

    def read(self) -> dict[str, Any] | None:
        """What was written last, with the runs as Results; None when there is nothing.

        Results of before there were checksums are taken as they are.
        """
        if not self.results.exists():
            return None
        try:
            written = checksum.parse_json(self.results.read_bytes())
            content = _unpacked(checksum.verify_checksum(written) if checksum.KEY in written else written)
            content["runs"] = Results(Run(**run) for run in content["runs"])
            missing = [name for name in _NEEDED if name not in content]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(
                f"expected {self.results} to be results of whitenorm-lab reproduce ({error}); "
                f"remove it and run it again"
            ) from error
        return content


# What is shown of results, besides their runs.
_NEEDED = ("experiment", "title", "scale", "parameters", "finished", "seconds", "machine", "claims")
_NOT_FINITE = ("inf", "-inf", "nan")


def kept(value: Any) -> Any:
    """For JSON: floats to seven digits, as many as the runs' own arithmetic has, and by name what is not finite."""
    if isinstance(value, dict):
        return {key: kept(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [kept(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unpacked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unpacked(inner) for inner in value]
    return float(value) if value in _NOT_FINITE else value
