"""Run the comparison of the kernels in child processes, so that a GPU fault cannot crash the caller."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from whitenorm.cli.gpu.agreement import DTYPES, LAYOUTS, Row

# Last lines of a failed process's stderr to show.
_STDERR_LINES = 3


class Outcome(NamedTuple):
    """Whether the kernels passed, lines that describe the result, and all compared quantities."""

    passed: bool
    lines: list[str]
    rows: tuple[Row, ...] = ()


class Part(NamedTuple):
    """A part of the verification: its name, and the module and arguments of its process."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()


PARTS = [
    *[
        Part(f"{dtype}, {layout}", "whitenorm.cli.gpu.agreement", ("--dtype", dtype, "--layout", layout))
        for dtype, layout in itertools.product(DTYPES, LAYOUTS)
    ],
    Part("conditions", "whitenorm.cli.gpu.conditions"),
]


def check(device: torch.device, limit: float) -> Outcome:
    """Run all parts within ``limit`` seconds.

    Several run at once, because most of the time is spent compiling.
    """
    deadline = time.monotonic() + limit
    with ThreadPoolExecutor(min(len(PARTS), max(1, (os.cpu_count() or 1) // 2))) as pool:
        outcomes = list(pool.map(lambda part: _run_part(device, part, deadline, limit), PARTS))
    return Outcome(
        all(outcome.passed for outcome in outcomes),
        [line for outcome in outcomes for line in outcome.lines],
        tuple([row for outcome in outcomes for row in outcome.rows]),
    )


def build_command(device: torch.device, part: Part) -> list[str]:
    """Return the command that runs one part."""
    return [sys.executable, "-m", part.module, str(device), *part.arguments]


def _run_part(device: torch.device, part: Part, deadline: float, limit: float) -> Outcome:
    name = part.name
    try:
        remaining = max(0.1, deadline - time.monotonic())
        result = subprocess.run(build_command(device, part), capture_output=True, text=True, timeout=remaining)
    except subprocess.TimeoutExpired:
        return Outcome(False, [f"{name}: no answer within {limit:.0f} s (the compiler or a kernel hangs, or is slow)"])
    try:
        rows = [Row(*row) for row in json.loads(result.stdout.splitlines()[-1])]
    except (ValueError, TypeError, IndexError):
        return Outcome(False, _describe_failure(name, result))
    return _judge(name, rows)


def _describe_failure(name: str, result: subprocess.CompletedProcess[str]) -> list[str]:
    """Describe how a process ended that printed no result."""
    code = result.returncode
    ending = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return [f"{name}: the process {ending}", *[f"    {line}" for line in result.stderr.splitlines()[-_STDERR_LINES:]]]


def _judge(name: str, rows: list[Row]) -> Outcome:
    failed = [row for row in rows if not row.agrees]
    if not rows or failed:
        lines = [f"{row.case}: {row.quantity} is off by {row.error:.1e} (allowed {row.allowed:.0e})" for row in failed]
        return Outcome(False, lines or [f"{name}: nothing was compared"], tuple(rows))
    worst = max(rows, key=lambda row: row.error / row.allowed if row.allowed else 0)
    line = f"{name}: {len(rows)} agree, at most {worst.error:.1e} off (allowed {worst.allowed:.0e})"
    return Outcome(True, [line], tuple(rows))
