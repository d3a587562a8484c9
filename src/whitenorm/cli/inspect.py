"""``whitenorm inspect``: report on a model's norms, before and after a conversion."""

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
from whitenorm.cli.models import load_attribute, load_model, load_run_batch
from whitenorm.diagnostics import Inspection, html_page, inspect
from whitenorm.models import LayerLike, convert_, recipes
from whitenorm.models.targets import TARGETS

_DEFAULT_SHAPE = (16, 3, 64, 64)
_File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass
class Inspect:
    """Report on the norms of a model for one batch, before and, with --layer, after a conversion."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A torchvision or timm name, file.py:name for a model or a function that returns one, or a training run."""
    layer: Annotated[str | None, tyro.conf.arg(metavar="LAYER")] = None
    """Convert to this layer and report again: iternorm, gw, ..., or file.py:name for a function from width to layer."""
    where: str = "all"
    """Which norms to convert: all, or a recipe's name."""
    shape: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N C H W")] = ()
    """Shape of a random batch; by default 16 3 64 64, or for a training run a batch of its own data."""
    data: _File = None
    """Read the input batch from this file of torch.save."""
    json: _File = None
    """Write all numbers to this file as JSON."""
    csv: _File = None
    """Write all numbers to this file as a table."""
    html: _File = None
    """Write a page with plots to this file, which opens in a browser without a network."""
    seed: int = 0
    """Seed of the random batch and of the model's weights."""


def main(args: list[str]) -> None:
    """Parse the arguments and run the command."""
    run(tyro.cli(Inspect, prog="whitenorm inspect", args=args))


def run(options: Inspect) -> dict[str, Inspection]:
    """Inspect a model, write and print the results, and return them by "before" and "after"."""
    layer = None if options.layer is None else _load_layer(options.layer)
    torch.manual_seed(options.seed)
    model = load_model(options.model).train()
    if layer is not None:
        # Raises before any computation if the model cannot be converted.
        recipes.plan(model, layer, options.where)
    batch, notes = _load_batch(options)
    for path in (options.json, options.csv, options.html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    titles = {"before": options.model, "after": f"with {options.layer} at {options.where}"}
    description = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
    expected = f"expected a batch that the model takes, by --shape or --data (got {description}"
    reports = {"before": _inspect(model, batch, expected)}
    if layer is not None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = convert_(model, layer, options.where)
        notes += [str(warning.message) for warning in caught]
        expected = f"expected a --layer with which the model runs (got {options.layer}"
        reports["after"] = _inspect(model, batch, expected)
    # Write files before printing, because a reader such as head may end the command early.
    notes += _write_files(options, titles, reports)
    # Names of files may contain brackets and colons, which are not markup.
    console = Console(markup=False, emoji=False)
    for name, report in reports.items():
        console.print(titles[name], style="bold", soft_wrap=True)
        console.print(f"{report}\n", soft_wrap=True, highlight=False)
    for note in notes:
        console.print(note, soft_wrap=True)
    return reports


def _load_layer(name: str) -> LayerLike:
    if ".py:" in name:
        layer: LayerLike = load_attribute(*name.rsplit(":", 1))
        return layer
    if name not in TARGETS:
        raise ValueError(
            f"expected --layer to be one of {', '.join(TARGETS)}, or file.py:name (got {name!r})"
            f"{suggest(name, TARGETS)}"
        )
    return name


def _load_batch(options: Inspect) -> tuple[Any, list[str]]:
    """Return the batch, and sentences to print about it."""
    if options.data is not None:
        return _read_batch(options.data), []
    result = None if options.shape else load_run_batch(options.model)
    if result is None:
        return torch.randn(options.shape or _DEFAULT_SHAPE), []
    batch, note = result
    return batch, [note]


def _read_batch(path: Path) -> Any:
    """Return a batch written by torch.save; a list of arguments as a tuple."""
    try:
        batch = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        # torch.load raises errors of many types for files in another format.
        raise OSError(f"expected {path} to be a batch of tensors written by torch.save ({error})") from error
    return tuple(batch) if isinstance(batch, list) else batch


def _inspect(model: nn.Module, batch: Any, expected: str) -> Inspection:
    try:
        return inspect(model, batch)
    except ValueError:
        raise
    except Exception as error:
        # A model may raise any error for a batch that does not fit.
        raise OSError(f"{expected}, on which it raises {type(error).__name__}: {error})") from error


def _write_files(options: Inspect, titles: dict[str, str], reports: dict[str, Inspection]) -> list[str]:
    """Write the files that the options name, and return one line per file."""
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
