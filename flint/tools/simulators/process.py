"""Somebody else's program as a child process: within limits, read while it runs, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flint.io import process_tree
from flint.io.processes import Patience, Watch, family, kill_group
from flint.tools.simulators import launcher

#: How many lines of stderr are kept, and how many characters of each.
KEPT_LINES = 40
KEPT_CHARACTERS = 400
#: A line that is longer is taken in pieces.
_LONGEST_LINE = 1 << 16
_READ_BYTES = 1 << 16
_LOOK_SECONDS = 0.2
#: What C++ and Python say of it.
_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "out of memory", "MemoryError")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Limits:
    """How long a program may take, and how much memory it may have (0: what there is)."""

    patience: Patience
    memory_bytes: int = 0


def machine_memory_bytes() -> int:
    """The memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    `status` is its exit status, minus the signal that killed it; `given_up` says why Flint did that
    ("did not finish in 60 seconds"), `refused` is the system's error number where it could not be
    run at all. `last_words` are the last lines of its stderr.
    """

    status: int
    given_up: str
    refused: int
    last_words: tuple[str, ...]
    seconds: float

    @property
    def lacked_memory(self) -> bool:
        """Whether it says so, or somebody else (the system) has killed it."""
        said = any(sign in word for word in self.last_words for sign in _NO_MEMORY)
        killed = self.status == -signal.SIGKILL and not self.given_up
        return self.status != 0 and (said or killed)


def run_program(
    command: Sequence[str], folder: Path, limits: Limits, on_line: Callable[[str], None]
) -> Ended:
    """Run a program in `folder` to its end. `on_line` is called with each line of stdout and stderr.

    Whatever is left of it and of what it started is killed when this returns or raises.
    """
    began, words = time.monotonic(), deque[str](maxlen=KEPT_LINES)
    process = _started(command, folder, limits)
    family().add(process.pid)
    try:
        with Watch(process.pid, limits.patience) as watch:
            _read(process, on_line, lambda line: words.append(line[:KEPT_CHARACTERS]))
        kill_group(process.pid)
        status = process.wait()
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            process.wait()
        family().forget(process.pid)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    refused = _refused(words) if status == launcher.STATUS else 0
    given_up = watch.reason if status == -signal.SIGKILL else ""
    return Ended(status, given_up, refused, tuple(words), time.monotonic() - began)


def _started(command: Sequence[str], folder: Path, limits: Limits) -> subprocess.Popen[bytes]:
    before = [
        sys.executable,
        "-I",
        "-S",
        launcher.__file__,
        process_tree.__file__,
        str(os.getpid()),
    ]
    return subprocess.Popen(
        [*before, str(limits.memory_bytes), *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )


def _read(
    process: subprocess.Popen[bytes], on_line: Callable[[str], None], on_word: Callable[[str], None]
) -> None:
    """Both streams, until they are closed or the program has ended and all of it is read."""
    assert process.stdout is not None and process.stderr is not None
    of_stdout, of_stderr = Lines(on_line), Lines(on_line, on_word)
    with selectors.DefaultSelector() as streams:
        for stream, lines in ((process.stdout, of_stdout), (process.stderr, of_stderr)):
            os.set_blocking(stream.fileno(), False)
            streams.register(stream, selectors.EVENT_READ, lines)
        while streams.get_map():
            is_over = _has_ended(process.pid)
            ready = streams.select(0 if is_over else _LOOK_SECONDS)
            for key, _ in ready:
                if not _took(key.fileobj, key.data):  # type: ignore[arg-type]
                    streams.unregister(key.fileobj)
            if is_over and not ready:
                break  # what it started may live on and hold the streams open
    of_stdout.close()
    of_stderr.close()
    while not _has_ended(process.pid):  # it has closed its streams
        time.sleep(_LOOK_SECONDS)


def _took(stream: IO[bytes], lines: Lines) -> bool:
    """Read what is there of a stream; false at its end."""
    with contextlib.suppress(BlockingIOError):
        data = os.read(stream.fileno(), _READ_BYTES)
        lines.feed(data)
        return bool(data)
    return True


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not reaped: its number stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Lines:
    """Cuts bytes into lines, without colors, and hands each that is not empty to all takers."""

    def __init__(self, *takers: Callable[[str], None]) -> None:
        self._takers = takers
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """More bytes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._hand(line)
        if len(self._rest) > _LONGEST_LINE:
            self.close()

    def close(self) -> None:
        """Take what is left as a line too."""
        rest, self._rest = self._rest, b""
        if rest:
            self._hand(rest)

    def _hand(self, line: bytes) -> None:
        text = _COLOURS.sub("", line.decode(errors="replace")).rstrip()
        for take in self._takers if text else ():
            take(text)


def _refused(words: Sequence[str]) -> int:
    """The number of the system's error that the launcher left, 0 if it did not."""
    last = words[-1] if words else ""
    number = last.removeprefix(launcher.REFUSED)
    return int(number) if number != last and number.isdigit() else 0
