"""Destinations of a monitor's rows: a CSV file, TensorBoard, or a function."""

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
_CONSTANT_COLUMNS = ("name", "kind", "width", "groups")
_HEADER = ["step", *COLUMNS]
_EXPECTED = (
    "expected a .csv file, a folder for TensorBoard, a writer with add_scalar, or a function of the step and its rows"
)


@contextmanager
def open_destination(to: Any) -> Iterator[Write]:
    """Yield a function that writes the rows of a step, and close what was opened for it at the end."""
    if isinstance(to, (str, os.PathLike)):
        path = Path(to)
        # A folder of a run may have a dot in its name, as in run.1; the extension of a file has letters only.
        if path.suffix.lower() != ".csv" and path.suffix[1:].isalpha() and not path.exists():
            raise ValueError(
                f"{_EXPECTED} (got {str(to)!r}, which is named as another kind of file); end it in .csv, or make the "
                "folder first"
            )
        with _open_csv(path) if path.suffix.lower() == ".csv" else _open_tensorboard(path) as write:
            yield write
    elif hasattr(to, "add_scalar"):
        yield lambda step, rows: _add_scalars(to, step, rows)
    elif callable(to):
        yield to
    else:
        raise ValueError(f"{_EXPECTED} (got {type(to).__name__})")


def collect_scalars(rows: Inspection) -> dict[str, float]:
    """Return all measures by the tag ``norm/<layer>/<measure>``."""
    return {
        f"norm/{row.name or row.kind}/{key}": getattr(row, key)
        for row in rows
        for key in COLUMNS
        if key not in _CONSTANT_COLUMNS and getattr(row, key) is not None
    }


def _add_scalars(writer: Any, step: int, rows: Inspection) -> None:
    for tag, value in collect_scalars(rows).items():
        writer.add_scalar(tag, value, step)


@contextmanager
def _open_csv(path: Path) -> Iterator[Write]:
    """Yield a function that appends rows and flushes them, so that a killed run loses none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        text = file.read()
        header = next(csv.reader(io.StringIO(text)), [])
        if header and header != _HEADER:
            raise OSError(
                f"expected {path} to be new or to have the columns {','.join(_HEADER)} (got {','.join(header)}); name "
                "another file"
            )
        if not header:
            csv.writer(file).writerow(_HEADER)
        elif not text.endswith("\n"):
            # A run was killed while it wrote this row.
            file.write("\r\n")

        def write(step: int, rows: Inspection) -> None:
            csv.writer(file).writerows([step, *(getattr(row, key) for key in COLUMNS)] for row in rows)
            file.flush()

        yield write


@contextmanager
def _open_tensorboard(folder: Path) -> Iterator[Write]:
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
