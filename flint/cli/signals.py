"""Ctrl-C, SIGTERM and SIGHUP: one line, the status that shells expect, and nothing left behind.

A KeyboardInterrupt may be raised anywhere: in the middle of an import of compiled code, which it
crashes, in a destructor, which swallows it, in the user's `except BaseException`. So the handler ends
the process itself, after it has undone what `flint.io.locks` lists. It raises only where a pool of
processes has to come to its own end. See docs/decisions/0027-ends-of-processes.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType

from flint.io.locks import endings

#: 128 and the number of the signal, as shells report it.
INTERRUPTED = 130
TERMINATED = 143

_WORDS = {
    getattr(signal, name): word
    for name, word in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)  # Windows has no SIGHUP
}
#: To the beginning of the line, and nothing on it.
_CLEAR_LINE = b"\r\x1b[K"
#: How long to wait for an import to end before an exception is raised.
_IMPORT_SECONDS = 0.02


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived: unwind, so that processes come to their end."""


class Signals:
    """What SIGINT, SIGTERM and SIGHUP do to this process."""

    def __init__(self) -> None:
        self._end = os._exit  # as it is now: the user's code gets another one
        self._unwinds = False
        self._process = 0
        #: Whether a line on stderr is being drawn that has to go before anything is said.
        self.drawing = False

    @property
    def taken(self) -> bool:
        """Whether this process is a command's own, from its beginning to its end."""
        return endings().owns_process

    def take(self) -> None:
        """Answer them from now on. A signal that the caller has told us to ignore stays ignored."""
        endings().owns_process = True
        self._process = os.getpid()
        for number in _WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def leave(self) -> None:
        """The work is done and said: what comes now has nothing to interrupt."""
        for number in _WORDS:
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def unwinding(self) -> Iterator[None]:
        """In this context, the first signal raises KeyboardInterrupt or Terminated."""
        self._unwinds = True
        try:
            yield
        finally:
            self._unwinds = False

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if (
            os.getpid() != self._process
        ):  # the user's code forked: parent and its files are not its own
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        if endings().is_later(number):
            return
        if not self._unwinds:
            self._end_now(number)
        if _imports(frame):
            self._again_soon(number)
            return
        self._unwinds = False  # whoever asks a second time does not want to wait
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _again_soon(self, number: int) -> None:
        signal.signal(signal.SIGALRM, lambda _, frame: self._arrived(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _IMPORT_SECONDS)

    def _end_now(self, number: int) -> None:
        # Its import may be under way: then it has no `family` yet, and no child was started.
        family = getattr(sys.modules.get("flint.io.processes"), "family", None)
        if family is not None:
            family().end()
        endings().end()
        with contextlib.suppress(OSError):
            os.write(2, _CLEAR_LINE if self.drawing else b"")
            os.write(2, f"{_WORDS[signal.Signals(number)]}\n".encode())
        self._end(128 + number)


def _imports(frame: FrameType | None) -> bool:
    """Whether an import is under way: compiled modules may not survive an exception in theirs."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@cache
def signals() -> Signals:
    """Those of this process."""
    return Signals()


def take_signals() -> None:
    """Let SIGINT and SIGTERM end the process as described above."""
    signals().take()
