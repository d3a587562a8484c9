"""A lock that gives a folder to one process at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Descriptors that hold a lock of this process.
_HELD: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, or raise an error that names the process that does.

    The lock is gone with the process, however it ends. It belongs to the open file, so that neither another attempt
    of this process nor reading the file gives it up; processes that this one forks do not share it.

    Example::

        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with locked(folder), locked(folder):
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
        # A forked process that gets here holds nothing.
        if file in _HELD:
            _HELD.discard(file)
            path.unlink(missing_ok=True)
            os.close(file)


def _acquire(path: Path) -> int:
    """Open and lock a file; returns its descriptor."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Not lockf: closing any other descriptor of the file would give up its lock.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, 1000).decode(errors="replace")
            os.close(file)
            raise _explain(error, path, holder) from error
        # Its holder may have removed it between our opening and locking it.
        if _is_at(path, file):
            return file
        os.close(file)


def _is_at(path: Path, file: int) -> bool:
    """Whether a path still names an open file."""
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
    """Close what a fork has copied: an open file stays locked until all its descriptors are closed.

    Otherwise the processes that read images would hold on to the lock when this one is killed.
    """
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_close_inherited)
