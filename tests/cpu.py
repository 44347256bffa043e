"""CPU seconds of a call, for tests that bound them: wall time says what else a machine does."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU seconds of this process for one call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def children_seconds(call: Callable[[], object]) -> float:
    """CPU seconds of the child processes that end during one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
