"""Description of the machine and software versions on which results are measured."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import whitenorm

_PACKAGE = Path(whitenorm.__file__).parent


def describe_machine() -> dict[str, Any]:
    """Return commit, versions, processor and number of threads, for storage with results."""
    return {
        "commit": _read_commit(),
        "whitenorm": whitenorm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _read_processor(),
        "threads": torch.get_num_threads(),
    }


def _read_commit() -> str | None:
    """Return the commit of the checkout, or None for an installed package."""
    top = _run_git("rev-parse", "--show-toplevel")
    # An installed package may lie inside another project's repository.
    if top is None or Path(top) / "src" / "whitenorm" != _PACKAGE:
        return None
    return f"{_run_git('rev-parse', 'HEAD')}{'+changes' if _run_git('status', '--porcelain', '-uno') else ''}"


def _run_git(*arguments: str) -> str | None:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
