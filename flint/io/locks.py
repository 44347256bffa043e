"""Locks that the system releases when their holder ends, however it ends.

Where a file system has no locks (some network ones, Windows) one is taken for granted: two writers
at once are then not kept apart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from flint.errors import FlintError

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


# What must not stay if this process ends before it has come to its clean-up itself.
#
# Whoever makes a file that is not to stay (a lock, a part, a scratch folder) says first how it goes away.
# A signal handler that ends the process runs what is said and not yet done; so does the end of a command.

_Undo = Callable[[], object]


class Endings:
    """Clean-ups of this process, and moments that a signal may not divide."""

    def __init__(self) -> None:
        self._undo: dict[object, tuple[int, _Undo]] = {}
        self._depth: dict[int, int] = {}
        self._late: int | None = None
        #: Whether this process is a command's own, from its beginning to its end.
        self.owns_process = False

    @contextlib.contextmanager
    def undoing(self, undo: _Undo) -> Iterator[None]:
        """Call `undo` at the end of the block, or when the process is ended inside.

        It may be called again while it runs and after it has run, from the same thread.
        """
        key = object()
        self._undo[key] = (os.getpid(), undo)
        try:
            yield
        finally:
            try:
                surely(undo)
            finally:
                del self._undo[key]

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """A signal that comes inside is answered afterwards. For a few calls that take no time."""
        thread = threading.get_ident()
        self._depth[thread] = self._depth.get(thread, 0) + 1
        try:
            yield
        finally:
            self._depth[thread] -= 1
            late = self._late
            if late is not None and not any(self._depth.values()):
                self._late = None
                signal.raise_signal(late)

    def is_later(self, number: int) -> bool:
        """Whether a signal has to wait; it is raised again then. For signal handlers."""
        if any(self._depth.values()):
            self._late = number
            return True
        return False

    def end(self) -> None:
        """Undo everything, what was begun last first. The process ends after this.

        A process that was forked off undoes nothing of its parent's.
        """
        for process, undo in reversed(list(self._undo.values())):
            if process == os.getpid():
                with contextlib.suppress(Exception):  # others have to go, too
                    undo()


@cache
def endings() -> Endings:
    """Those of this process."""
    return Endings()


def surely(clean_up: _Undo) -> None:
    """Clean up, and once more if an interrupt comes in between."""
    try:
        clean_up()
    except Exception:
        raise
    except BaseException:
        clean_up()
        raise
