"""Where a monitor's rows go: a CSV file, TensorBoard, or a function."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whitenorm.diagnostics.reports import COLUMNS, Inspection

Write = Callable[[int, Inspection], None]
_SETTINGS = ("name", "kind", "width", "groups")
_HEADER = ["step", *COLUMNS]
_EXPECTED = (
    "expected a .csv file, a folder for TensorBoard, a writer with add_scalar, or a function of the step and its rows"
)


@contextmanager
def destination(to: Any) -> Iterator[Write]:
    """A function that writes the rows of a step, and closes what it opened at the end."""
    if isinstance(to, (str, os.PathLike)):
        path = Path(to)
        # A folder of a run may have a dot in its name, as in run.1; the end of a file's name is a word.
        if path.suffix.lower() != ".csv" and path.suffix[1:].isalpha() and not path.exists():
            raise ValueError(
                f"{_EXPECTED} (got {str(to)!r}, a file of another kind by its name); end it in .csv, or make the "
                "folder first"
            )
        with _csv(path) if path.suffix.lower() == ".csv" else _tensorboard(path) as write:
            yield write
    elif hasattr(to, "add_scalar"):
        yield lambda step, rows: _add_scalars(to, step, rows)
    elif callable(to):
        yield to
    else:
        raise ValueError(f"{_EXPECTED} (got {type(to).__name__})")


def scalars(rows: Inspection) -> dict[str, float]:
    """What was measured, as ``norm/<layer>/<measure>``."""
    return {
        f"norm/{row.name or row.kind}/{key}": getattr(row, key)
        for row in rows
        for key in COLUMNS
        if key not in _SETTINGS and getattr(row, key) is not None
    }


def _add_scalars(writer: Any, step: int, rows: Inspection) -> None:
    for tag, value in scalars(rows).items():
        writer.add_scalar(tag, value, step)


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    """Rows appended as soon as they are known, so that a run that is killed keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        old = file.read()
        found = next(csv.reader(io.StringIO(old)), [])
        if found and found != _HEADER:
            raise OSError(
                f"expected {path} to be new or to have the columns {','.join(_HEADER)} (got {','.join(found)}); name "
                "another file"
            )
        if not found:
            csv.writer(file).writerow(_HEADER)
        elif not old.endswith("\n"):
            # Of a run that was killed while it wrote.
            file.write("\r\n")

        def write(step: int, rows: Inspection) -> None:
            csv.writer(file).writerows([step, *(getattr(row, key) for key in COLUMNS)] for row in rows)
            file.flush()

        yield write


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Write]:
    if folder.is_file():
        raise OSError(f"expected a folder, or a file that ends in .csv (got the file {folder})")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"expected tensorboard to be installed for the folder {folder} (it is not): pip install tensorboard, or "
            "name a .csv file"
        ) from error
    with SummaryWriter(str(folder)) as writer:

        def write(step: int, rows: Inspection) -> None:
            _add_scalars(writer, step, rows)
            writer.flush()

        yield write
