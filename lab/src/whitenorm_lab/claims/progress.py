"""Progress of an experiment: a bar on a terminal, a line every 30 seconds elsewhere, both with the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from whitenorm_lab.claims.results import Run
from whitenorm_lab.claims.runner import ProgressCallback

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def show_progress(
    title: str, console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressCallback]:
    """Yield a callback for :func:`reproduce` that shows the progress."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    estimate = TimeEstimate(clock)
    # Without a terminal, rich shows a bar only at the end, so lines are printed instead.
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=1.0, runs="0", left="–")
        last_line = clock()

        def on_progress(done: int, total: int, share: float, run: Run | None) -> None:
            nonlocal last_line
            seconds = estimate.update(done, total, share, run)
            left = "–" if seconds is None else str(timedelta(seconds=round(seconds)))
            progress.update(task, total=total, completed=done + share, runs=f"{done}/{total}", left=left)
            if not console.is_terminal and clock() - last_line >= _SECONDS_BETWEEN_LINES:
                last_line = clock()
                line = f"{title}: {done + share:.1f} of {total} runs, left {left}"
                console.print(line, highlight=False, soft_wrap=True)

        yield on_progress


class TimeEstimate:
    """Remaining time by the mean time of all completed runs, including those of an interrupted call.

    Example::

        >>> estimate = TimeEstimate(clock=lambda: 0.0)
        >>> estimate.update(0, 4, 0.0, None) is None
        True
        >>> estimate.update(1, 4, 0.0, Run({}, 0, {}, seconds=10.0))
        30.0
        >>> estimate.update(1, 4, 0.5, None)
        25.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._seconds = 0.0

    def update(self, done: int, total: int, share: float, run: Run | None) -> float | None:
        """Count a completed run, if one is passed; return the remaining seconds, or None before any progress."""
        if run is not None:
            self._seconds += run.seconds
        if done:
            return self._seconds / done * (total - done - share)
        return (self._clock() - self._start) / share * (total - share) if share else None
