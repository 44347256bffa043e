"""All that a process has started, whatever session or group it was put into (Linux; elsewhere nothing is found).

Imports the standard library alone, and little of it: launchers run it as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal

_PR_SET_CHILD_SUBREAPER = 36
#: Whoever starts processes while they are killed gets so many more looks.
_ROUNDS = 100
#: It ends by itself, and removes what killed processes have left of shared memory.
_TRACKER = b"multiprocessing.resource_tracker"


def adopt_orphans() -> bool:
    """From now on, processes below this one whose parent ends become its children, not the system's.

    False where the system cannot do that.
    """
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def kill_below(pid: int) -> None:
    """Kill every process below `pid`, until there is none."""
    for _ in range(_ROUNDS):
        found = [p for p in below(pid) if not _is_tracker(p)]
        if not found:
            return
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)


def below(pid: int) -> list[int]:
    """Living processes that `pid` started, and those that they started."""
    children: dict[int, list[int]] = {}
    for each, (parent, state) in _processes().items():
        if state not in "ZX":
            children.setdefault(parent, []).append(each)
    found, waiting = [], [pid]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _processes() -> dict[int, tuple[int, str]]:
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in filter(str.isdecimal, names):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended since
        found[int(name)] = (int(parent), state)
    return found


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _TRACKER in file.read(4096)
    except OSError:
        return False
