"""What ``whitenorm inspect`` looks at: models of libraries, of Python files and of training runs, and batches."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from whitenorm._suggest import suggest


def model_of(name: str) -> nn.Module:
    """A torchvision or timm name, ``file.py:name`` of a model or a function that returns one, or a run's folder."""
    if ".py:" in name:
        return _from_file(*name.rsplit(":", 1))
    loader = _loader_of(name)
    if loader is not None:
        return loader.load(Path(name))
    found = _from_library("torchvision.models", "get_model", name, weights=None)
    found = _from_library("timm", "create_model", name) if found is None else found
    if found is None:
        raise OSError(
            "expected a torchvision or timm model, file.py:name, or the folder of a training run of whitenorm-lab (got "
            f"{name!r}, which {_nobody_knows()}){suggest(name, _library_names())}"
        )
    return found


class RunLoader(Protocol):
    """Loads models and batches from the folders of training runs; registered as the entry point ``whitenorm.runs``."""

    def is_run(self, folder: Path) -> bool:
        """Return whether a folder holds a training run."""

    def load(self, folder: Path) -> nn.Module:
        """Return the trained model of a run."""

    def batch(self, folder: Path) -> tuple[Any, str]:
        """Return a batch of a run's data, and one sentence that says what it is."""


def is_run(name: str) -> bool:
    """Return whether a name is the folder of a training run that an installed package can load."""
    return _loader_of(name) is not None


def batch_of_run(name: str) -> tuple[Any, str]:
    """Return a batch of a run's data, and one sentence that says what it is."""
    loader = _loader_of(name)
    assert loader is not None
    return loader.batch(Path(name))


def _loader_of(name: str) -> RunLoader | None:
    # Loading an entry point may import a large package.
    if not Path(name).is_dir():
        return None
    loaders: Iterator[RunLoader] = (entry.load() for entry in entry_points(group="whitenorm.runs"))
    return next((loader for loader in loaders if loader.is_run(Path(name))), None)


def from_file(path: str, name: str) -> Any:
    """What a Python file has by this name."""
    spec = importlib.util.spec_from_file_location("whitenorm_inspected", path)
    if not Path(path).exists() or spec is None or spec.loader is None:
        raise OSError(f"expected a Python file before the colon (got {path!r}, which is not there)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        names = [other for other in vars(module) if not other.startswith("_")]
        raise OSError(f"expected {path} to have a {name!r} (it has none of that name){suggest(name, names)}")
    return getattr(module, name)


def _from_file(path: str, name: str) -> nn.Module:
    found = from_file(path, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise OSError(
            f"expected {name} in {path} to be a model or a function that returns one (got {type(found).__name__})"
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise OSError(
            f"expected {name} in {path} to need no arguments ({error}); name a function that makes the model"
        ) from error
    model = found()
    if not isinstance(model, nn.Module):
        raise OSError(f"expected {name} in {path} to return a model (got {type(model).__name__})")
    return model


def _nobody_knows() -> str:
    """What the libraries say to a name; of one that is not installed, how to have it."""
    absent = [package for package in ("torchvision", "timm") if importlib.util.find_spec(package) is None]
    if not absent:
        return "neither library knows"
    return f"no library here knows: without {' and '.join(absent)}, which pip install {' '.join(absent)} adds"


def _library_names() -> set[str]:
    names: set[str] = set()
    for package in ("torchvision.models", "timm"):
        with suppress(ImportError):
            names.update(importlib.import_module(package).list_models())
    return names


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
