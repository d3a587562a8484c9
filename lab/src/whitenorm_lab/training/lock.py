"""Lock that gives a folder to one process at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# File descriptors of the locks that this process holds.
_HELD: set[int] = set()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, or raise an OSError that names the process that holds it.

    The lock ends with the process, however it ends. It belongs to the open file: neither a second attempt in this
    process nor reading the file releases it, and forked processes do not hold it. (The filelock package would let the
    workers of a killed run hold its lock.)

    Example::

        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with lock_folder(folder), lock_folder(folder):
        ...     pass
        Traceback (most recent call last):
        OSError: expected ... to be free (got a run in it: process ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    file = _acquire(path)
    _HELD.add(file)
    try:
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        # A forked process that leaves the block holds no lock.
        if file in _HELD:
            _HELD.discard(file)
            path.unlink(missing_ok=True)
            os.close(file)


def _acquire(path: Path) -> int:
    """Open and lock a file, and return its descriptor."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # lockf would release its lock when any other descriptor of the file is closed.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, 1000).decode(errors="replace")
            os.close(file)
            raise _explain(error, path, holder) from error
        # The previous holder may have removed the file after it was opened here.
        if _is_at(path, file):
            return file
        os.close(file)


def _is_at(path: Path, file: int) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _explain(error: OSError, path: Path, holder: str) -> OSError:
    if isinstance(error, BlockingIOError):
        return OSError(
            f"expected {path.parent} to be free (got a run in it: {holder or 'another process'}); wait for it, or "
            "choose another --folder"
        )
    return OSError(
        f"expected {path.parent} on a file system that can lock files (got: {error}); choose a --folder on another one"
    )


def _close_inherited() -> None:
    """Close descriptors copied by a fork, because a file stays locked until all its descriptors are closed.

    Otherwise the workers of a data loader would keep the lock of a killed run.
    """
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_close_inherited)
