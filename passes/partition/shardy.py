"""The `shardy` partitioner: Shardy's passes in the worker process, then extraction here."""

from __future__ import annotations

from flint.captured import Captured
from flint.passes.extract import extract_with_results
from flint.passes.partition.worker import the_worker
from flint.program import Program


def partition_shardy(captured: Captured) -> Program:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    return partition_with_results(captured)[0]


def partition_with_results(captured: Captured) -> tuple[Program, tuple[int, ...]]:
    """`partition_shardy`, and for each result of the program the row that holds it."""
    _, partitioned = the_worker().request("shardy", captured.module)
    return extract_with_results(partitioned, captured.mesh, captured.trip_counts)
