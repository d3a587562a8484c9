"""Record of the GPUs on which the Triton kernels were verified against torch's: a file in the user's cache.

An entry holds for one model of GPU, and one version of torch, Triton and whitenorm.
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

# Most bytes of a file to read: thousands of entries.
_LARGEST = 2**20


def is_verified(device: torch.device) -> bool:
    """Return whether the kernels were verified on this model of GPU."""
    return _is_verified(torch.cuda.current_device() if device.index is None else device.index)


def record(device: torch.device, passed: bool) -> Path:
    """Record whether the kernels passed the verification on this model of GPU, and return the path of the record."""
    key = device_key(device)
    keys = set(_read_keys()) - {key}
    path = _record_path()
    try:
        _replace_file(path, json.dumps({"passed": sorted(keys | {key} if passed else keys)}, indent=1))
    except OSError as error:
        raise OSError(
            f"expected to write {path} (got {error}); make it writable, or set $XDG_CACHE_HOME to a folder that is"
        ) from error
    _is_verified.cache_clear()
    return path


def _replace_file(path: Path, content: str) -> None:
    """Write a file atomically, because other processes may read it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def device_key(device: torch.device) -> str:
    """Return the entry of a GPU in the record: its model, and the versions in use."""
    major, minor = torch.cuda.get_device_capability(device)
    # Not from the package's metadata, which has another name on some systems.
    triton = importlib.import_module("triton").__version__
    name = torch.cuda.get_device_name(device)
    return f"{name} ({major}.{minor}), torch {torch.__version__}, triton {triton}, whitenorm {__version__}"


@functools.cache
def _is_verified(index: int) -> bool:
    try:
        return device_key(torch.device("cuda", index)) in _read_keys()
    except ImportError:
        return False


def _read_keys() -> list[str]:
    """Return the recorded entries, none if there is no readable file."""
    try:
        return [str(key) for key in json.loads(_read_file(_record_path()))["passed"]]
    # A RecursionError is JSON that is nested too deeply.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _read_file(path: Path) -> bytes:
    """Return the bytes of a regular file: opening a FIFO would wait for a writer, and a device may have no end."""
    if not path.is_file():
        raise OSError(f"expected a regular file (got {path})")
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"expected at most {_LARGEST} bytes (got more in {path})")
    return content


def _record_path() -> Path:
    local = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        folder = Path(local) if local else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(f"expected a home folder for the cache (got none: {error}); set $XDG_CACHE_HOME") from error
    return folder / "whitenorm" / "kernels.json"
