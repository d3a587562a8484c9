"""On which kinds of cards Triton's kernels were seen to give the same numbers as torch's: a file in the user's cache.

A pass counts for one kind of card, and one version of torch, Triton and whitenorm.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tempfile
from pathlib import Path

import torch

from whitenorm._version import __version__


def is_trusted(device: torch.device) -> bool:
    """Whether the kernels have passed on this kind of card."""
    return _is_trusted(torch.cuda.current_device() if device.index is None else device.index)


def remember(device: torch.device, passed: bool) -> Path:
    """Keep whether they passed; returns the file it is kept in."""
    kinds = {kind for kind in _known() if kind != kind_of(device)}
    path = _file()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: other processes read it.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({"passed": sorted(kinds | {kind_of(device)} if passed else kinds)}, file, indent=1)
    os.replace(file.name, path)
    _is_trusted.cache_clear()
    return path


def kind_of(device: torch.device) -> str:
    """What a pass counts for."""
    major, minor = torch.cuda.get_device_capability(device)
    # Its package has other names on some systems.
    triton = importlib.import_module("triton").__version__
    name = torch.cuda.get_device_name(device)
    return f"{name} ({major}.{minor}), torch {torch.__version__}, triton {triton}, whitenorm {__version__}"


@functools.cache
def _is_trusted(index: int) -> bool:
    try:
        return kind_of(torch.device("cuda", index)) in _known()
    except ImportError:
        return False


def _known() -> list[str]:
    """The kinds that have passed; none, if the file cannot be read."""
    try:
        return [str(kind) for kind in json.loads(_file().read_text())["passed"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _file() -> Path:
    local = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(local) if local else Path.home() / ".cache") / "whitenorm" / "kernels.json"
