"""The results of ``whitenorm gpu`` as one file, which users can attach to an issue."""

from __future__ import annotations

import importlib
import json
import platform
from pathlib import Path
from typing import Any, NamedTuple

import torch

from whitenorm._version import __version__
from whitenorm.cli.gpu.agreement import Row

# Changes with the fields of the file; benchmarks/results/gpu/README.md describes them.
FORMAT = 1


class Report(NamedTuple):
    """Outcome of the verification, every compared quantity, and measured times if it passed."""

    passed: bool
    lines: list[str]
    rows: tuple[Row, ...]
    machine: dict[str, Any]
    bandwidth: float | None = None
    seconds: dict[str, dict[str, float]] | None = None


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return the GPU and the versions of the software, without anything that names a user or a computer."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": torch.cuda.get_device_name(device),
        "capability": list(torch.cuda.get_device_capability(device)),
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "gpus": torch.cuda.device_count(),
        "whitenorm": __version__,
        "torch": torch.__version__,
        "triton": importlib.import_module("triton").__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON; see benchmarks/results/gpu/README.md."""
    values = {"format": FORMAT, **report._asdict(), "rows": [row._asdict() for row in report.rows]}
    try:
        path.write_text(json.dumps(values, indent=1) + "\n")
    except OSError as error:
        raise OSError(f"expected to write {path} (got {error}); choose another file with --report") from error
