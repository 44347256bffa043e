"""The `shardy` partitioner: Shardy's passes in the worker process, then extraction here."""

from __future__ import annotations

from flint.ir.program import Program
from flint.passes.extract.walk import extract_with_results, extract_with_splits
from flint.passes.partition import Partitioned
from flint.passes.partition.replicated import replicated_work
from flint.passes.partition.worker import the_worker
from flint.steps.captured import Captured


def partitioned(captured: Captured) -> Partitioned:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    _, module = the_worker().request("shardy", captured.module)
    found = extract_with_splits(module, captured.mesh, captured.trip_counts)
    return Partitioned(found.program, replicated_work(found.program, found.splits), by="shardy")


def partition_with_results(captured: Captured) -> tuple[Program, tuple[int, ...]]:
    """The program, and for each of its results the row that holds it; raises as `partitioned`."""
    _, module = the_worker().request("shardy", captured.module)
    return extract_with_results(module, captured.mesh, captured.trip_counts)
