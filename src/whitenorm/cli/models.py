"""Models and batches for ``whitenorm inspect``: from libraries, Python files and folders of training runs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from torch import nn

from whitenorm._suggest import suggest


def load_model(name: str) -> nn.Module:
    """Return the model that a command's MODEL argument names: a library's, one of a Python file, or a training run's.

    A Python file has ``file.py:name``, a model or a function that returns one.
    """
    if ".py:" in name:
        return _load_from_file(*name.rsplit(":", 1))
    loader = _find_run_loader(name)
    if loader is not None:
        return loader.load(Path(name))
    return _load_from_library(name)


class RunLoader(Protocol):
    """Loads models and batches from the folders of training runs; registered as the entry point ``whitenorm.runs``."""

    def is_run(self, folder: Path) -> bool:
        """Return whether a folder holds a training run."""

    def load(self, folder: Path) -> nn.Module:
        """Return the trained model of a run."""

    def batch(self, folder: Path) -> tuple[Any, str]:
        """Return a batch of a run's data, and one sentence that says what it is."""


def load_run_batch(name: str) -> tuple[Any, str] | None:
    """Return a batch of a run's data and one sentence that says what it is; None if the name is not a run's folder."""
    loader = _find_run_loader(name)
    return None if loader is None else loader.batch(Path(name))


def _find_run_loader(name: str) -> RunLoader | None:
    folder = Path(name)
    # Checked first, because loading an entry point may import a large package.
    if not folder.is_dir():
        return None
    for entry in entry_points(group="whitenorm.runs"):
        try:
            loader: RunLoader = entry.load()
        except ImportError as error:
            raise OSError(
                f"expected the packages that {entry.name} needs to read {name} ({error}); install them"
            ) from error
        if loader.is_run(folder):
            return loader
    return None


def load_attribute(path: str, name: str) -> Any:
    """Run a Python file and return its attribute of this name."""
    spec = importlib.util.spec_from_file_location("whitenorm_inspected", path)
    if not Path(path).exists() or spec is None or spec.loader is None:
        raise OSError(f"expected a Python file before the colon (got {path!r}, which does not exist)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        names = [other for other in vars(module) if not other.startswith("_")]
        raise OSError(f"expected {path} to define {name!r} (it does not){suggest(name, names)}")
    return getattr(module, name)


def _load_from_file(path: str, name: str) -> nn.Module:
    value = load_attribute(path, name)
    if isinstance(value, nn.Module):
        return value
    if not callable(value):
        raise OSError(
            f"expected {name} in {path} to be a model or a function that returns one (got {type(value).__name__})"
        )
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise OSError(
            f"expected {name} in {path} to need no arguments ({error}); name a function without any"
        ) from error
    model = value()
    if not isinstance(model, nn.Module):
        raise OSError(f"expected {name} in {path} to return a model (got {type(model).__name__})")
    return model


def _load_from_library(name: str) -> nn.Module:
    libraries = {"torchvision": _import("torchvision.models"), "timm": _import("timm")}
    for package, library in libraries.items():
        if library is not None:
            try:
                model: nn.Module = library.get_model(name) if package == "torchvision" else library.create_model(name)
            except (ValueError, RuntimeError):
                # Raised for unknown names by torchvision and timm, respectively.
                continue
            return model
    missing = [package for package, library in libraries.items() if library is None]
    if Path(name).is_dir():
        reason = "a folder without a training run"
        if not entry_points(group="whitenorm.runs"):
            reason = "a folder, and whitenorm-lab, which reads training runs, is not installed"
    elif missing:
        reason = f"which no installed library has; pip install {' '.join(missing)} for more models"
    else:
        reason = "which neither library has"
    names = {known for library in libraries.values() if library is not None for known in library.list_models()}
    raise OSError(
        "expected a torchvision or timm model, file.py:name, or the folder of a training run of whitenorm-lab (got "
        f"{name!r}, {reason}){suggest(name, names)}"
    )


def _import(module: str) -> ModuleType | None:
    """Return a library's module, or None if it cannot be imported."""
    try:
        return importlib.import_module(module)
    # torchvision raises RuntimeError if it was built for another version of torch.
    except (ImportError, RuntimeError):
        return None
