"""Locks that the system releases when their holder ends, however it ends.

Where a file system has no locks (some network ones, Windows) one is taken for granted: two writers
at once are then not kept apart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flint.errors import FlintError
from flint.io.endings import endings

#: How long a writer waits for another one.
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.05
#: What a file system answers that has no locks.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


@contextlib.contextmanager
def locked(path: Path, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock file `path`, which is made here and removed at the end.

    A file that a killed process left is nobody's lock, and is taken over. Raises FlintError FL506
    if another process holds it for `wait_seconds`, OSError if the file cannot be made.
    """
    lock, end = _Lock(path), time.monotonic() + wait_seconds
    with endings().undoing(lock.release):
        while not lock.take():
            if time.monotonic() >= end:
                raise FlintError(
                    "FL506",
                    f"another process has held {path} for {wait_seconds:g} seconds",
                    help="it writes to the same place: wait until it ends, or choose another place",
                )
            time.sleep(_POLL_SECONDS)
        yield


class _Lock:
    """A lock file, and the descriptor that holds it, if this process does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> bool:
        """Whether it is held now, and not by someone else. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with (
            endings().whole()
        ):  # a file that was made belongs to this process from the first moment
            handle = os.open(self._path, flags, 0o666)
            if try_lock(handle) is not False and is_still(self._path, handle):
                self._handle = handle
            else:
                os.close(handle)
        return self._handle is not None

    def release(self) -> None:
        """Remove the file while it is held: who waits for it sees that it is another one."""
        with endings().whole():
            if self._handle is None:
                return
            if is_still(self._path, self._handle):
                self._path.unlink()
            os.close(self._handle)
            self._handle = None


def try_lock(handle: int) -> bool | None:
    """Lock an open file or directory for as long as it is open.

    False if another process has, None where there are no locks.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def is_still(path: Path, handle: int) -> bool:
    """Whether `path` is the open file, not another one of that name."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False
