"""What numbers were measured on: versions, commit, processor."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import whitenorm

_PACKAGE = Path(whitenorm.__file__).parent


def machine() -> dict[str, Any]:
    """Versions, commit and processor, for the JSON of a measurement."""
    return {
        "commit": _commit(),
        "whitenorm": whitenorm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The checkout's commit, None for an installed package."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may lie inside somebody else's repository.
    if top is None or Path(top) / "src" / "whitenorm" != _PACKAGE:
        return None
    return f"{_git('rev-parse', 'HEAD')}{'+changes' if _git('status', '--porcelain', '-uno') else ''}"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
