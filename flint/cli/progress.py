"""Which stage a command is in, on a terminal, once it has lasted for two seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flint.cli.console import has_colour, is_terminal
from flint.cli.signals import signals
from flint.log import STAGES

if TYPE_CHECKING:
    from rich.progress import Progress

#: Who waits longer wants to know what for.
PATIENCE_SECONDS = 2.0


@contextlib.contextmanager
def stages_shown(*, quiet: bool, after_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Draw the current stage of what runs inside on stderr, with how long all of it has lasted.

    Nothing is drawn where nobody looks, nor where the log is shown, which says it too.
    """
    if quiet or not is_terminal(sys.stderr) or STAGES.isEnabledFor(logging.INFO):
        yield
        return
    display = _Display(time.monotonic())
    timer = threading.Timer(after_seconds, display.begin)
    timer.daemon = True
    with _listening(display):
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            display.end()


@contextlib.contextmanager
def _listening(handler: logging.Handler) -> Iterator[None]:
    before = STAGES.level, STAGES.propagate
    STAGES.addHandler(handler)
    STAGES.setLevel(logging.DEBUG)
    STAGES.propagate = False
    try:
        yield
    finally:
        STAGES.removeHandler(handler)
        STAGES.setLevel(before[0])
        STAGES.propagate = before[1]


class _Display(logging.Handler):
    """A line with the innermost stage. `begin` may come from another thread, once, or not at all."""

    def __init__(self, began: float) -> None:
        super().__init__()
        self._began = began
        self._pid = os.getpid()
        self._names: list[str] = []
        self._drawn: Progress | None = None
        self._ended = False
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:  # a fork, in which nobody draws and locks may be held
            return
        begins, ends = getattr(record, "begins", None), getattr(record, "ends", None)
        with self._guard:
            if begins:
                self._names.append(begins)
            elif ends and ends in self._names:
                self._names.remove(ends)
            if self._drawn is not None:
                self._drawn.update(self._drawn.task_ids[0], description=self._text())

    def begin(self) -> None:
        drawn = _spinner()
        with self._guard:
            if self._ended:
                return
            task = drawn.add_task(self._text(), total=None)
            drawn.tasks[task].start_time = self._began
            signals().drawing = True
            drawn.start()
            self._drawn = drawn

    def end(self) -> None:
        with self._guard:
            self._ended = True
            if self._drawn is not None:
                self._drawn.stop()
                signals().drawing = False

    def _text(self) -> str:
        return ": ".join(self._names) or "working"


def _spinner() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    class CursorStays(Console):
        """The user's code may end the process: then nobody would show the cursor again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    console = CursorStays(stderr=True, no_color=not has_colour(sys.stderr))
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
