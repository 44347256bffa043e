"""What commands show of the log: on stderr, as much as -v, -vv or FLINT_LOG ask for."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from flint.cli.console import print_note
from flint.errors import FlintError, nearest

#: Names the level from which on the log is shown.
VARIABLE = "FLINT_LOG"
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,
}
_OF_VERBOSE = (logging.CRITICAL, logging.INFO, logging.DEBUG)


@contextlib.contextmanager
def log_shown(verbose: int) -> Iterator[None]:
    """Show the log inside: from INFO on with one -v, from DEBUG on with more, or as FLINT_LOG says.

    The more talkative of both counts. Raises FlintError FL217 for a level that there is not.
    """
    level = min(_OF_VERBOSE[min(verbose, 2)], _level_of_environment())
    if level == logging.CRITICAL:
        yield
        return
    logger = logging.getLogger("flint")
    before = logger.level, logger.propagate
    handler = _OnStderr(level)
    handler.setFormatter(_Plain())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # the model's code may have given the root a handler of its own
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _level_of_environment() -> int:
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text and text not in _LEVELS:
        raise FlintError(
            "FL217",
            f"the environment variable {VARIABLE} is {text!r}, which is no level of the log"
            f"{nearest(text, list(_LEVELS))}",
            help=f"unset it, or choose one of {', '.join(_LEVELS)}",
        )
    return _LEVELS[text or "off"]


class _OnStderr(logging.Handler):
    """Writes to what stderr is at that moment; never raises, as nobody could be told."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_note(self.format(record))
        except Exception:  # noqa: BLE001  a broken message is no reason to end a capture
            self.handleError(record)


class _Plain(logging.Formatter):
    """Level, seconds since the process began to import, who says it, and what."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = record.relativeCreated / 1000
        name = record.name.removeprefix("flint.")
        return f"{record.levelname.lower():<5} {seconds:7.2f} s  {name}: {record.getMessage()}"
