"""The log: the standard module, under `flint`. Stages of a run say there when they start and end.

Nothing is set up here: in Python, `logging.basicConfig(level="INFO")` shows it; the command line has
-v, -vv and FLINT_LOG.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Starts (DEBUG) and ends (INFO) of stages: what shows progress listens here.
STAGES = logging.getLogger("flint.stage")


@contextmanager
def stage(name: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
    """Log a stage. Its wall time goes to `seconds`, as `NAME_seconds`."""
    STAGES.debug("%s ...", name, extra={"begins": name})
    started = time.perf_counter()
    try:
        yield
    finally:
        taken = time.perf_counter() - started
        STAGES.info("%s took %.3f s", name, taken, extra={"ends": name})
    if seconds is not None:
        seconds[f"{name}_seconds"] = taken
