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

# Bytes of a file that is read: thousands of kinds of cards.
_LARGEST = 2**20


def is_trusted(device: torch.device) -> bool:
    """Whether the kernels have passed on this kind of card."""
    return _is_trusted(torch.cuda.current_device() if device.index is None else device.index)


def remember(device: torch.device, passed: bool) -> Path:
    """Keep whether they passed; returns the file it is kept in."""
    kinds = {kind for kind in _known() if kind != kind_of(device)}
    path = _file()
    try:
        _replace(path, json.dumps({"passed": sorted(kinds | {kind_of(device)} if passed else kinds)}, indent=1))
    except OSError as error:
        raise OSError(
            f"expected to write {path} (got {error}); make it writable, or set $XDG_CACHE_HOME to a folder that is"
        ) from error
    _is_trusted.cache_clear()
    return path


def _replace(path: Path, content: str) -> None:
    """Write a file whole or not at all, as other processes read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


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
    """Return the kinds that have passed; none if there is no readable file."""
    try:
        return [str(kind) for kind in json.loads(_content(_file()))["passed"]]
    # A RecursionError is JSON that is nested too deeply.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file: opening a FIFO would wait for a writer, and a device may have no end."""
    if not path.is_file():
        raise OSError(f"expected a regular file (got {path})")
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"expected at most {_LARGEST} bytes (got more in {path})")
    return content


def _file() -> Path:
    local = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        folder = Path(local) if local else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(f"expected a home folder for the cache (got none: {error}); set $XDG_CACHE_HOME") from error
    return folder / "whitenorm" / "kernels.json"
