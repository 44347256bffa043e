"""Child processes: each in a group of its own, watched while it is waited for, never left behind.

A child that makes no progress is ended, and where its threads stood is kept. Ctrl-C in a terminal
reaches the parent alone, which ends its children: they print nothing about it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from flint.errors import FlintError
from flint.io.locks import endings
from flint.io.process_tree import adopt_orphans, kill_below
from flint.io.scratch import remove_leftovers

#: Environment variables that change the two limits of `Patience`, in seconds.
IDLE_SECONDS = "FLINT_CHILD_IDLE_SECONDS"
TOTAL_SECONDS = "FLINT_CHILD_SECONDS"
#: Tells a child on which descriptor it leaves its stacks when asked, and who its parent is: "5 1234".
_CHILD = "FLINT_CHILD"
#: Less of a core than this is no progress: threads that wake up to look whether there is work.
_BUSY = 0.001
#: How long a child has to write its stacks before it is killed.
_DUMP_SECONDS = 0.5
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")
#: Lines of stack frames, which say nothing of why.
_FRAMES = ("@", "***", "File", "Extension", "PC:", "Current thread", "Thread", "Fatal Python")


@dataclass(frozen=True)
class Patience:
    """How long to wait for a child: `idle_seconds` without any use of the CPU, `total_seconds` in all."""

    idle_seconds: float = 300.0
    total_seconds: float = 3600.0

    @classmethod
    def from_environment(cls) -> Patience:
        """The limits that the environment sets. Raises FlintError FL217 for no number of seconds."""
        return cls(
            _seconds(IDLE_SECONDS, cls.idle_seconds), _seconds(TOTAL_SECONDS, cls.total_seconds)
        )


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < threading.TIMEOUT_MAX:
        raise FlintError(
            "FL217",
            f"the environment variable {name} is {text!r}, not a number of seconds above 0",
            help=f"unset it ({default:g} seconds), or give another number",
        )
    return value


class Stuck(Exception):
    """Where the threads of a child and of its parent stood when it was given up."""


class Child:
    """A process in a group of its own, with a place for its stacks. Ends with `end`.

    `options` are those of `subprocess.Popen`. The child calls `begin_child` before anything else.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        descriptor = self._stacks.fileno()
        about = f"{descriptor} {os.getpid()}"
        environment = {**(options.pop("env", None) or os.environ), _CHILD: about}
        self.process = subprocess.Popen(
            command, env=environment, process_group=0, pass_fds=(descriptor,), **options
        )
        family().add(self.process.pid)

    def watched(self, patience: Patience) -> Watch:
        """A context in which the child is killed when it makes no progress."""
        return Watch(self.process.pid, patience, self._stacks)

    def end(self) -> int:
        """Kill what is left of the process and its group, and return its exit status."""
        kill_group(self.process.pid)
        code = self.process.wait()
        family().forget(self.process.pid)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._stacks.close()
        return code


class Watch:
    """Looks after a process group while somebody waits for it, and kills it when patience ends.

    `reason` says then why ("made no progress for 300 seconds"), `stacks` where threads stood.
    """

    def __init__(self, pid: int, patience: Patience, stacks: IO[bytes] | None = None) -> None:
        self.reason = ""
        self.stacks = ""
        self._pid = pid
        self._patience = patience
        self._file = stacks
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="flint-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()  # it wakes at once, and each of its waits is bounded

    def cause(self) -> Stuck:
        """The stacks as an exception, for `-v` to print."""
        return Stuck(self.stacks or "the process left no stacks")

    def _look(self) -> None:
        limits = self._patience
        interval = min(5.0, limits.idle_seconds / 10, limits.total_seconds / 10)
        idle = total = used_before = 0.0
        before = time.monotonic()
        while not self._done.wait(interval):
            # A process that was stopped as a whole, or a machine that slept, did not wait.
            passed, before = min(time.monotonic() - before, 2 * interval), time.monotonic()
            total += passed
            used = cpu_seconds(self._pid)
            idle += passed
            if used is None or used - used_before > max(0.0, _BUSY * idle):
                idle, used_before = 0.0, used or 0.0
            if idle >= limits.idle_seconds:
                return self._give_up(f"made no progress for {limits.idle_seconds:g} seconds")
            if total >= limits.total_seconds:
                return self._give_up(f"did not finish in {limits.total_seconds:g} seconds")

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        if self._file is not None and hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGUSR1)  # its forks, too
                time.sleep(_DUMP_SECONDS)
            # Not seek: the child writes through the same open file.
            size = os.fstat(self._file.fileno()).st_size
            of_child = os.pread(self._file.fileno(), size, 0).decode(errors="replace")
            self.stacks = f"in the child:\n{of_child}\nin the parent:\n{_own_stacks()}"
        kill_group(self._pid)


def _own_stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def cpu_seconds(group: int) -> float | None:
    """CPU seconds that the living processes of a group have used; None where no /proc says so."""
    ticks, found = 0, False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        found = True
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))  # user and system time, own and of ended children
    return ticks / os.sysconf("SC_CLK_TCK") if found else None


def kill_group(pid: int) -> None:
    """Kill a child that is not reaped yet, everything in its group and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # it starts no more, and keeps its orphans
    kill_below(pid)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


class ChildFamily:
    """The children that run, for whoever ends the process at once."""

    def __init__(self) -> None:
        self._pids: dict[int, None] = {}
        if endings().owns_process:
            adopt_orphans()

    def add(self, pid: int) -> None:
        """A child has started."""
        self._pids[pid] = None

    def forget(self, pid: int) -> None:
        """A child has ended and was waited for."""
        self._pids.pop(pid, None)

    def end(self) -> None:
        """Kill all children and what they started. Takes no lock: signal handlers call it."""
        for pid in list(self._pids):
            kill_group(pid)
        if endings().owns_process:
            kill_below(os.getpid())  # orphans, whose parents have ended
        for pid in list(self._pids):
            with contextlib.suppress(ChildProcessError):  # what is dead writes no more
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        remove_leftovers()  # scratch folders of theirs


@cache
def family() -> ChildFamily:
    """The children of this process."""
    return ChildFamily()


# --- in the child ---------------------------------------------------------------------------------


def begin_child() -> None:
    """Leave stacks when asked to, and end with the parent. First thing in a child's `main`."""
    about = os.environ.pop(_CHILD, "")
    if not about:
        return  # a person started it
    descriptor, parent = map(int, about.split())
    faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)
    end_with(parent)


def end_with(parent: int) -> None:
    """From now on end this process, and what it started, when its parent has ended.

    One that was killed ends no children.
    """
    adopt_orphans()
    end = os._exit  # as it is now: while the user's code runs it is another one
    watch = threading.Thread(target=_end_with, args=(parent, end), name="flint-parent", daemon=True)
    watch.start()


def _end_with(parent: int, end: Callable[[int], NoReturn]) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    kill_below(os.getpid())
    end(1)


def how_it_ended(code: int) -> str:
    """`SIGABRT`, or `exit status 1`."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def last_words(stderr: bytes) -> str:
    """The fatal line of a log if there is one, else its last line, without stack frames."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    said = [line for line in lines if not line.startswith(_FRAMES)]
    return _LOG_PREFIX.sub("", (fatal or said or ["it printed nothing"])[-1])[:400]


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
