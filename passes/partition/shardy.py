"""The `shardy` partitioner: Shardy's passes in the worker process, then extraction here."""

from __future__ import annotations

from flint.captured import Captured
from flint.passes.extract import extract
from flint.passes.partition.worker import the_worker
from flint.program import Program


def partition_shardy(captured: Captured) -> Program:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    _, partitioned = the_worker().request("shardy", captured.module)
    return extract(partitioned, captured.mesh, captured.trip_counts)
