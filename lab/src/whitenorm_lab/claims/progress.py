"""What an experiment shows as it runs: a bar on a terminal, now and then a line where there is none; the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from whitenorm_lab.claims.results import Run
from whitenorm_lab.claims.runner import Watch

# Between two lines.
_SECONDS = 30.0


@contextmanager
def shown(title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """A watch for :func:`reproduce` that shows how far it is."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]}"),
    )
    pace = Pace(clock)
    # Without a terminal rich shows a bar at the end alone, so lines take its place.
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=1.0, runs="0", left="–")
        said = clock()

        def watch(done: int, total: int, share: float, run: Run | None) -> None:
            nonlocal said
            left = _clock_face(pace.left(done, total, share, run))
            progress.update(task, total=total, completed=done + share, runs=f"{done}/{total}", left=left)
            if not console.is_terminal and clock() - said >= _SECONDS:
                said = clock()
                line = f"{title}: {done + share:.1f} of {total} runs, left {left}"
                console.print(line, highlight=False, soft_wrap=True)

        yield watch


class Pace:
    """The time left, by the mean time of the runs that ended, those of an interrupted call included.

    Example::

        >>> pace = Pace(clock=lambda: 0.0)
        >>> pace.left(0, 4, 0.0, None) is None
        True
        >>> pace.left(1, 4, 0.0, Run({}, 0, {}, seconds=10.0))
        30.0
        >>> pace.left(1, 4, 0.5, None)
        25.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._seconds = 0.0

    def left(self, done: int, total: int, share: float, run: Run | None) -> float | None:
        """Seconds; None while there is nothing to tell it from."""
        if run is not None:
            self._seconds += run.seconds
        if done:
            return self._seconds / done * (total - done - share)
        return (self._clock() - self._start) / share * (total - share) if share else None


def _clock_face(seconds: float | None) -> str:
    return "–" if seconds is None else str(timedelta(seconds=round(seconds)))
