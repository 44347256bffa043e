"""A body of a stage, partitioned: the program of one device, and the rows of its ports."""

from __future__ import annotations

from flint.passes.partition.shardy import partition_with_results
from flint.passes.pipeline.parts import PartitionedBody
from flint.staged import Body


def partition_body(body: Body) -> PartitionedBody:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    program, results = partition_with_results(body.captured)
    assert len(results) == len(body.results), f"{len(results)} results, {len(body.results)} ports"
    arguments = tuple(range(len(body.arguments)))  # the walk begins with a row for each argument
    return PartitionedBody(program, body.arguments, body.results, arguments, results)
