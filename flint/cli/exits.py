"""How a command ends: exit codes, the guard around it, and what the user's code may not do to it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NoReturn, TypeVar

import typer

from flint.cli.console import print_error, print_note, print_traceback
from flint.cli.options import refuse_outputs
from flint.cli.signals import INTERRUPTED, TERMINATED, Terminated, signals
from flint.errors import FlintError, nearest
from flint.io.locks import endings

#: A check or a comparison found something.
FOUND = 1
#: Nobody read the output to its end: what a shell says of a process that SIGPIPE ended.
UNREAD = 141
#: A bug of ours (EX_SOFTWARE of sysexits.h). 2 is `FlintError.exit_code`, and typer's usage errors.
BUG = 70
C = TypeVar("C", bound=Callable[..., None])
#: What compiled code is told when it calls `exit()`; C reads it when the process ends.
_SAID = b"error[FL203]: compiled code of the model called exit()"


def guarded(command: C) -> C:
    """Wrap a command so that it ends with an exit code and never with a bare exception."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: Any) -> None:
        try:
            with log_shown(int(kwargs.get("verbose") or 0)):
                refuse_outputs(command, kwargs)
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except FlintError as error:
            if kwargs.get("verbose") and error.__cause__ is not None:
                print_traceback(error.__cause__)
            print_error(error, whole=bool(kwargs.get("verbose")))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except Terminated:
            print("terminated", file=sys.stderr)
            raise typer.Exit(TERMINATED) from None
        except BrokenPipeError:
            # The reader (`| head`) has what it wanted. Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(UNREAD) from None
        except Exception:  # noqa: BLE001  all that is left is our bug
            traceback.print_exc()
            print("\nthis is a bug in flint, please report it", file=sys.stderr)
            raise typer.Exit(BUG) from None
        except BaseException as error:  # noqa: BLE001  SystemExit, and what users derive like it
            if kwargs.get("verbose"):
                print_traceback(error)
            print_error(_ended(error))
            raise typer.Exit(FlintError.exit_code) from None

    return run  # type: ignore[return-value]  # functools.wraps keeps the signature


def _ended(error: BaseException) -> FlintError:
    """No code of ours raises it: the user's did, somewhere where nothing else has caught it."""
    from flint.frontends.user_code import user_error

    return user_error(error, "the model's code")


@contextlib.contextmanager
def user_process() -> Iterator[None]:
    """The user's code runs inside, `contained`; in a process of ours, compiled code is, too."""
    from flint.frontends.contained import contained

    if signals().taken:  # else the process is somebody else's
        no_exit_of_compiled_code()
    with contained():
        yield


@cache
def no_exit_of_compiled_code() -> bool:
    """Let `exit()` of C end this process with status 2 and a sentence, whatever it is called with.

    Python cannot catch it, and a status of 0 would look like a result. From here on the process has
    to end with `end_process`. Returns whether the C library can do this.
    """
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        register, end, say = libc.__cxa_atexit, libc._exit, libc.warnx
    except (OSError, AttributeError, TypeError):
        return False
    nothing = ctypes.c_void_p(None)
    # What is registered last is called first.
    register(ctypes.cast(end, ctypes.c_void_p), ctypes.c_void_p(FlintError.exit_code), nothing)
    register(ctypes.cast(say, ctypes.c_void_p), ctypes.c_char_p(_SAID), nothing)
    return True


def end_process(status: int) -> NoReturn:
    """End the process as Python would, without the exit handlers of C and the user's threads."""
    from flint.frontends.contained import keep_descriptor_1_clean

    keep_descriptor_1_clean()
    endings().end()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120  # as Python does
    os._exit(status)


# What commands show of the log: on stderr, as much as -v, -vv or FLINT_LOG ask for.

#: Names the level from which on the log is shown.
LOG_VARIABLE = "FLINT_LOG"
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
    text = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if text and text not in _LEVELS:
        raise FlintError(
            "FL217",
            f"the environment variable {LOG_VARIABLE} is {text!r}, which is not a log "
            f"level{nearest(text, list(_LEVELS))}",
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
