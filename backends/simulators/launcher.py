"""Becomes another program, which ends with its parent and stays within a limit of memory.

    python launcher.py PARENT MEMORY_BYTES PROGRAM [ARGUMENT...]

Run as a file, by the interpreter without any packages. Where the program cannot be run it says why
on stderr, with `REFUSED` before it, and ends with 126.
"""

from __future__ import annotations

import contextlib
import os
import sys

#: Before the number of the system's error for a program that cannot be run.
REFUSED = "flint-cannot-run "
#: Exit status with that.
STATUS = 126
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Give this process to the program. Comes back only if that fails."""
    parent, memory_bytes, *command = arguments
    _end_with(int(parent))
    _limit(int(memory_bytes))
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{REFUSED}{error.errno}", file=sys.stderr)
    return STATUS


def _end_with(parent: int) -> None:
    """Let Linux kill this process with its parent, which may be killed before it can do it."""
    import ctypes
    import signal

    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return  # another system: only a parent that ends in order ends it
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(STATUS)


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
    sys.exit(main(sys.argv[1:]))
