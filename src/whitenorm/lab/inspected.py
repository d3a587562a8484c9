"""What ``whitenorm inspect`` looks at: models of libraries, of Python files and of training runs, and batches."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.core.suggest import suggest


def model_of(name: str) -> nn.Module:
    """A torchvision or timm name, ``file.py:name`` of a model or a function that returns one, or a run's folder."""
    if ".py:" in name:
        return _from_file(*name.rsplit(":", 1))
    if is_run(name):
        return _from_run(name)
    found = _from_library("torchvision.models", "get_model", name, weights=None)
    found = _from_library("timm", "create_model", name) if found is None else found
    if found is None:
        raise OSError(
            "expected a torchvision or timm model, file.py:name, or the folder of a training run (got "
            f"{name!r}, which {_nobody_knows()}, and which has no config.json){suggest(name, _library_names())}"
        )
    return found


def is_run(name: str) -> bool:
    """Whether it is the folder of a training run."""
    return (Path(name) / "config.json").is_file()


def batch_of_run(name: str) -> tuple[Any, str]:
    """A batch for a run's model, and what it is; where the run's data cannot be had, it is random numbers.

    Training examples of the run's own set, as many as it trained on at once, not augmented.
    """
    from whitenorm.lab import tasks
    from whitenorm.lab.training.folder import RunFolder
    from whitenorm.lab.training.task import placed

    folder = RunFolder(Path(name))
    config = folder.config()
    task = tasks.made(replace(config, folder=None, sync=False, workers=0))
    like = torch.empty(0, dtype=torch.float64 if config.precision == "64" else torch.float32)
    try:
        if "dataset" in folder.given():
            raise ValueError("it was handed to fit, not named")
        batches = task.source(None, lambda: 0, 0, 1)
    except (OSError, ValueError) as error:
        example = placed(task.example(folder.description(), config.batch_size or 64), like)
        return example, f"Measured on noise, {_shape(example)}: the run's data cannot be loaded: {error}"
    try:
        batch = next(iter(batches.calibration(max(1, round(batches.per_step)))))
        inputs = placed(task.inputs(task.on_device(batch)), like)
        return inputs, f"Measured on training {task.unit}, {_shape(inputs)}."
    finally:
        batches.close()


def _shape(inputs: Any) -> str:
    """Of a tensor, or of the tensors that a dict or list has."""
    if isinstance(inputs, Tensor):
        return " × ".join(map(str, inputs.shape))
    return " and ".join(_shape(value) for value in (inputs.values() if isinstance(inputs, dict) else inputs))


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


def _from_run(folder: str) -> nn.Module:
    try:
        from whitenorm.lab.training import load
    except ModuleNotFoundError as error:
        raise OSError(
            f"expected the lab extra to be installed for the training run {folder} ({error.name} is missing): "
            "pip install 'whitenorm[lab]'"
        ) from error
    return load(folder)


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
