"""A folder belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A process's own locks do not keep it out.
_HELD: set[Path] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, or say which process does. The system itself lets go of what a dead process held.

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
    file = _taken(path)
    _HELD.add(path.resolve())
    try:
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        _HELD.discard(path.resolve())
        path.unlink(missing_ok=True)
        os.close(file)


def _taken(path: Path) -> int:
    while True:
        if path.resolve() in _HELD:
            raise _busy(path, path.read_text())
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Not flock, which the processes that read images would share, and hold on to when this one is killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.read(file, 1000).decode(errors="replace")
            os.close(file)
            raise _busy(path, holder) from error
        # Its holder may have removed it between our opening and locking it.
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file
        os.close(file)


def _busy(path: Path, holder: str) -> OSError:
    return OSError(
        f"expected {path.parent} to be free (got a run in it: {holder or 'another process'}); wait for it, or choose "
        "another --folder"
    )
