"""``whitenorm inspect``: what a model's norms do, and what whitening would change."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas
import torch
import tyro
from rich.console import Console
from torch import nn

from whitenorm._suggest import suggest
from whitenorm.cli.models import batch_of_run, from_file, is_run, model_of
from whitenorm.diagnostics import Inspection, html_page, inspect
from whitenorm.models import LayerLike, convert_, recipes
from whitenorm.models.targets import TARGETS

_SHAPE = (16, 3, 64, 64)


@dataclass
class Inspect:
    """Report on the norms of a model for one batch, before and, with --layer, after a conversion."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A torchvision or timm name, file.py:name for a model or a function that returns one, or the folder of a training
    run."""
    layer: str | None = None
    """Convert to this layer, such as iternorm or gw, or by file.py:name, a function from width to layer, and report
    again."""
    where: str = "all"
    """Where to convert: a recipe's name."""
    shape: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N C H W")] = ()
    """Of a batch of random numbers, if there are no data; 16 3 64 64 by default, for a run a batch of its images."""
    data: Path | None = None
    """A file of torch.save with the input batch."""
    json: Path | None = None
    """Write all numbers here."""
    csv: Path | None = None
    """Write them here as a table for spreadsheets and data frames."""
    html: Path | None = None
    """Write a page with plots here, which any browser opens without a network."""
    seed: int = 0
    """For the random numbers and the model's weights."""


def main(args: list[str]) -> None:
    """Parse the arguments and inspect."""
    run(tyro.cli(Inspect, prog="whitenorm inspect", args=args))


def run(options: Inspect) -> dict[str, Inspection]:
    """Inspect, write and print; returns the reports by name."""
    # File names may contain brackets and colons, which are not markup.
    console = Console(markup=False, emoji=False)
    layer = None if options.layer is None else _layer(options.layer)
    torch.manual_seed(options.seed)
    model = model_of(options.model).train()
    if layer is not None:
        # What cannot be converted is told before the first number.
        recipes.plan(model, layer, options.where)
    batch, notes = _batch(options)
    for path in (options.json, options.csv, options.html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    titles = {"before": options.model, "after": f"with {options.layer} at {options.where}"}
    given = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
    expected = f"expected a batch that the model takes, by --shape or --data (got {given}"
    reports = {"before": _inspected(model, batch, expected)}
    if layer is not None:
        expected = f"expected a --layer with which the model runs (got {options.layer}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = convert_(model, layer, options.where)
        notes += [str(warning.message) for warning in caught]
        reports["after"] = _inspected(model, batch, expected)
    # All files before the first word: who reads only that, as head does, ends the command there.
    written = _write(options, titles, reports)
    for name, report in reports.items():
        console.print(titles[name], style="bold", soft_wrap=True)
        console.print(str(report), soft_wrap=True, highlight=False)
        console.print()
    for line in notes + written:
        console.print(line, soft_wrap=True)
    return reports


def _write(options: Inspect, titles: dict[str, str], reports: dict[str, Inspection]) -> list[str]:
    lines = []
    if options.json is not None:
        parts = ",\n".join(f'"{name}": {report.to_json()}' for name, report in reports.items())
        options.json.write_text(f"{{{parts}}}\n")
        lines.append(f"Numbers: {options.json}")
    if options.csv is not None:
        frames = {name: report.to_frame() for name, report in reports.items()}
        pandas.concat(frames, names=["model", "layer"]).to_csv(options.csv)
        lines.append(f"Table: {options.csv}")
    if options.html is not None:
        page = html_page({titles[name]: report for name, report in reports.items()}, title=options.model)
        options.html.write_text(page, encoding="utf-8")
        lines.append(f"Page: {options.html}")
    return lines


def _layer(name: str) -> LayerLike:
    if ".py:" in name:
        found: LayerLike = from_file(*name.rsplit(":", 1))
        return found
    if name not in TARGETS:
        raise ValueError(
            f"expected --layer to be one of {', '.join(TARGETS)}, or file.py:name (got {name!r})"
            f"{suggest(name, TARGETS)}"
        )
    return name


def _batch(options: Inspect) -> tuple[Any, list[str]]:
    """The batch, and what is to be said about it."""
    if options.data is not None:
        return _read(options.data), []
    if options.shape or not is_run(options.model):
        return torch.randn(options.shape or _SHAPE), []
    batch, note = batch_of_run(options.model)
    return batch, [note]


def _read(path: Path) -> Any:
    """What torch.save wrote; a list of arguments as a tuple."""
    try:
        batch = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        # torch.load raises anything on bytes that are not its own.
        raise OSError(f"expected {path} to be a batch of tensors as torch.save writes it ({error})") from error
    return tuple(batch) if isinstance(batch, list) else batch


def _inspected(model: nn.Module, batch: Any, expected: str) -> Inspection:
    try:
        return inspect(model, batch)
    except ValueError:
        raise
    except Exception as error:
        # A model may raise anything on a batch that is not for it.
        raise OSError(f"{expected}, on which it raises {type(error).__name__}: {error})") from error
