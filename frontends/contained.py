"""What the user's code may not do to the process that runs it: end it, or write to its stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

#: What would end the process, or put another program in its place, before a result is there.
_ENDS = ("_exit", "execv", "execve")


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """The user's code runs inside: what it prints goes to stderr, what ends the process is an error.

    stdout may have to be one JSON document, so descriptor 1 itself leads to stderr: compiled code
    and processes that the user's code starts write to it. `os._exit` and `os.exec*` raise
    SystemExit, which is an error wherever the user's code raises it.
    """
    with _descriptor_1_to_stderr(), contextlib.redirect_stdout(sys.stderr), _no_silent_end():
        yield


def keep_descriptor_1_clean() -> None:
    """Lead descriptor 1 to stderr: what the user's code prints at exit is not a result either."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # Python says so when it ends
    with contextlib.suppress(OSError):
        os.dup2(2, 1)


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
