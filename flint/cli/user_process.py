"""Running the user's code in the process of a command: it neither ends it nor writes its results."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NoReturn

from flint.cli.signals import signals
from flint.errors import FlintError

#: What compiled code is told when it calls `exit()`; C reads it when the process ends.
_SAID = b"error[FL203]: compiled code of the model called exit()"

#: What would end the process, or put another program in its place, before a result is there.
_ENDS = ("_exit", "execv", "execve")


@contextlib.contextmanager
def user_process() -> Iterator[None]:
    """The user's code runs inside: what it prints goes to stderr, what ends the process is an error.

    stdout may have to be one JSON document, so descriptor 1 itself leads to stderr: compiled code
    and processes that the user's code starts write to it. `os._exit` and `os.exec*` raise
    SystemExit, which is an error wherever the user's code raises it.
    """
    if signals().taken:  # else the process is somebody else's
        no_exit_of_compiled_code()
    with _descriptor_1_to_stderr(), contextlib.redirect_stdout(sys.stderr), _no_silent_end():
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
    keep_descriptor_1_clean()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120  # as Python does
    os._exit(status)


@contextlib.contextmanager
def _descriptor_1_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # the caller has closed it: there is nothing to keep clean
        yield
        return
    keep_descriptor_1_clean()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def keep_descriptor_1_clean() -> None:
    """Lead descriptor 1 to stderr: what the user's code prints at exit is no result either."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # Python says so when it ends
    with contextlib.suppress(OSError):
        os.dup2(2, 1)


@contextlib.contextmanager
def _no_silent_end() -> Iterator[None]:
    here = os.getpid()
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _ENDS}

    def replacement(name: str) -> Callable[..., NoReturn]:
        def raises(*args: Any) -> NoReturn:
            if os.getpid() != here:  # a process that the user's code has forked may end
                originals[name](*args)
            raise SystemExit(f"os.{name}({', '.join(map(repr, args))})")

        return raises

    for name in _ENDS:
        setattr(os, name, replacement(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
