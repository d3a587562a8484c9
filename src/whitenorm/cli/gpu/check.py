"""The agreement of kernels, asked in child processes: a fault there is an answer, and takes nobody with it."""

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

# Lines of a fault's own words that are shown.
_SHOWN = 3


class Outcome(NamedTuple):
    """Whether the kernels passed, and what there is to say about it."""

    passed: bool
    words: list[str]


def check(device: torch.device, limit: float) -> Outcome:
    """Ask for each dtype and layout, in ``limit`` seconds; several at a time, as most of it is compiling."""
    deadline = time.monotonic() + limit
    parts = list(itertools.product(DTYPES, LAYOUTS))
    with ThreadPoolExecutor(min(len(parts), max(1, (os.cpu_count() or 1) // 2))) as pool:
        outcomes = list(pool.map(lambda part: _asked(device, part[0], part[1], deadline, limit), parts))
    return Outcome(
        all(outcome.passed for outcome in outcomes), [line for outcome in outcomes for line in outcome.words]
    )


def command(device: torch.device, dtype: str, layout: str) -> list[str]:
    """What is run for one of them."""
    return [sys.executable, "-m", "whitenorm.cli.gpu.agreement", str(device), "--dtype", dtype, "--layout", layout]


def _asked(device: torch.device, dtype: str, layout: str, deadline: float, limit: float) -> Outcome:
    what = f"{dtype}, {layout}"
    try:
        left = max(1.0, deadline - time.monotonic())
        done = subprocess.run(command(device, dtype, layout), capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return Outcome(False, [f"{what}: no answer within {limit:.0f} s (the compiler or a kernel hangs, or is slow)"])
    try:
        found = [Row(*row) for row in json.loads(done.stdout.splitlines()[-1])]
    except (ValueError, TypeError, IndexError):
        return Outcome(False, _fault(what, done))
    return _judged(what, found)


def _fault(what: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """What is known of a process that gave no answer."""
    code = done.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return [f"{what}: the process {how}", *[f"    {line}" for line in done.stderr.splitlines()[-_SHOWN:]]]


def _judged(what: str, found: list[Row]) -> Outcome:
    off = [row for row in found if not row.agrees]
    if not found or off:
        words = [f"{row.case}: {row.quantity} is off by {row.error:.1e} (allowed {row.allowed:.0e})" for row in off]
        return Outcome(False, words or [f"{what}: nothing was compared"])
    closest = max(found, key=lambda row: row.error / row.allowed if row.allowed else 0)
    return Outcome(
        True, [f"{what}: {len(found)} agree, at most {closest.error:.1e} off (allowed {closest.allowed:.0e})"]
    )
