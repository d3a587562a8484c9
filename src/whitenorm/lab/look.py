"""``whitenorm inspect``: what a model's norms do, and what whitening would change."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas
import torch
import tyro
from rich.console import Console
from torch import nn

from whitenorm.diagnostics import Inspection, html_page, inspect
from whitenorm.models import convert_


@dataclass
class Inspect:
    """Report on the norms of a model for one batch, before and, with --layer, after a conversion."""

    model: tyro.conf.Positional[str]
    """A torchvision or timm name, or file.py:function for a function that returns a model."""
    layer: str | None = None
    """Convert to this layer, such as iternorm or gw, and report again."""
    where: str = "all"
    """Where to convert: a recipe's name."""
    shape: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N C H W")] = (16, 3, 64, 64)
    """Of a batch of random numbers, if there are no data."""
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


def run(options: Inspect) -> dict[str, Inspection]:
    """Inspect, print and write; returns the reports by name."""
    console = Console()
    torch.manual_seed(options.seed)
    model = load(options.model)
    batch = _batch(options.data) if options.data else torch.randn(options.shape)
    for path in (options.json, options.csv, options.html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    titles = {"before": options.model, "after": f"with {options.layer} at {options.where}"}
    reports = {"before": _inspected(model.train(), batch)}
    _show(console, titles["before"], reports["before"])
    if options.layer is not None:
        model = convert_(model, options.layer, options.where)
        reports["after"] = _inspected(model, batch)
        _show(console, titles["after"], reports["after"])
    if options.json is not None:
        parts = ",\n".join(f'"{name}": {report.to_json()}' for name, report in reports.items())
        options.json.write_text(f"{{{parts}}}\n")
        console.print(f"Numbers: {options.json}")
    if options.csv is not None:
        pandas.concat({name: report.to_frame() for name, report in reports.items()}, names=["model", "layer"]).to_csv(
            options.csv
        )
        console.print(f"Table: {options.csv}")
    if options.html is not None:
        page = html_page({titles[name]: report for name, report in reports.items()}, title=options.model)
        options.html.write_text(page, encoding="utf-8")
        console.print(f"Page: {options.html}")
    return reports


def _batch(path: Path) -> Any:
    """What torch.save wrote; a list of arguments as a tuple."""
    try:
        batch = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        # torch.load raises anything on bytes that are not its own.
        raise OSError(f"expected {path} to be a batch of tensors as torch.save writes it ({error})") from error
    return tuple(batch) if isinstance(batch, list) else batch


def _inspected(model: nn.Module, batch: Any) -> Inspection:
    try:
        return inspect(model, batch)
    except ValueError:
        raise
    except Exception as error:
        given = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
        raise OSError(
            f"expected a batch that the model takes (got {given}, on which it raises {type(error).__name__}: {error}); "
            "pass --shape or --data"
        ) from error


def load(name: str) -> nn.Module:
    """The model of a name."""
    if ".py:" in name:
        return _from_file(*name.rsplit(":", 1))
    found = _from_library("torchvision.models", "get_model", name, weights=None)
    found = _from_library("timm", "create_model", name) if found is None else found
    if found is None:
        raise OSError(
            f"expected a torchvision or timm model, or file.py:function (got {name!r}, which neither library that is "
            "installed knows)"
        )
    return found


def _from_library(package: str, function: str, name: str, **options: Any) -> nn.Module | None:
    try:
        make = getattr(importlib.import_module(package), function)
    except ImportError:
        return None
    try:
        model: nn.Module = make(name, **options)
    except (ValueError, RuntimeError):
        # What these libraries raise for a name that they do not know.
        return None
    return model


def _from_file(path: str, function: str) -> nn.Module:
    spec = importlib.util.spec_from_file_location("whitenorm_inspected", path)
    if not Path(path).exists() or spec is None or spec.loader is None:
        raise OSError(f"expected a Python file before the colon (got {path!r}, which is not there)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise OSError(f"expected {path} to have a function {function!r} (it has none of that name)")
    model = getattr(module, function)()
    if not isinstance(model, nn.Module):
        raise OSError(f"expected {function} in {path} to return a model (got {type(model).__name__})")
    return model


def _show(console: Console, title: str, report: Inspection) -> None:
    console.print(title, style="bold")
    console.print(str(report), soft_wrap=True, highlight=False, markup=False)
    console.print()
