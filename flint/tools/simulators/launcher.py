"""Runs another program, which ends with the parent of this one and stays within a limit of memory.

    python launcher.py PROCESS_TREE.py PARENT MEMORY_BYTES PROGRAM [ARGUMENT...]

Run as a file, by the interpreter without any packages. Ends as the program ends; nothing that the
program started lives on. Where it cannot be run, says why on stderr, with `REFUSED` before it, and
ends with 126.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

#: Before the number of the system's error for a program that cannot be run.
REFUSED = "flint-cannot-run "
#: Exit status with that.
STATUS = 126
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> NoReturn:
    """Run the program and end as it does."""
    tree_file, parent, memory_bytes, *command = arguments
    tree = runpy.run_path(tree_file)
    tree["adopt_orphans"]()
    _end_with(int(parent), tree["kill_below"])
    pid = os.fork()
    if pid == 0:
        _become(command, int(memory_bytes))
    _, status = os.waitpid(pid, 0)
    tree["kill_below"](os.getpid())
    _end_as(os.waitstatus_to_exitcode(status))


def _become(command: list[str], memory_bytes: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _limit(memory_bytes)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{REFUSED}{error.errno}", file=sys.stderr, flush=True)
    os._exit(STATUS)


def _end_as(code: int) -> NoReturn:
    """With an exit status, or by a signal (its number below 0), without another dump of memory."""
    if code < 0:
        _limit(0)
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_with(parent: int, kill_below: Callable[[int], None]) -> None:
    """Let Linux tell this process that its parent has ended, which may be killed."""
    import ctypes

    def end(number: int, frame: Any) -> None:
        kill_below(os.getpid())
        os._exit(STATUS)

    signal.signal(signal.SIGTERM, end)
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return  # another system: only a parent that ends in order ends it
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        end(0, None)


def _limit(memory_bytes: int) -> None:
    """No more memory than that (0: any), no dumps of it, and as many open files as may be."""
    import resource

    def set_soft(kind: int, wanted: int) -> None:
        most = resource.getrlimit(kind)[1]
        wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with contextlib.suppress(OSError, ValueError):  # a system without this limit
            resource.setrlimit(kind, (wanted, most))

    if memory_bytes:
        set_soft(resource.RLIMIT_AS, memory_bytes)
    set_soft(resource.RLIMIT_CORE, 0)
    set_soft(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


if __name__ == "__main__":
    main(sys.argv[1:])
