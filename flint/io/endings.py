"""What must not stay if this process ends before it has come to its clean-up itself.

Whoever makes a file that is not to stay (a lock, a part, a scratch folder) says first how it goes away.
A signal handler that ends the process runs what is said and not yet done; so does the end of a command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cache

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
