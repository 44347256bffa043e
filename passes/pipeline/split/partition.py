"""A body of a stage, partitioned: the program of one device, and the rows of its ports."""

from __future__ import annotations

import numpy as np

from flint.errors import FlintError
from flint.ir.mesh import AxisRef
from flint.ir.program import Kind, Program
from flint.passes.partition.shardy import partition_with_results
from flint.passes.pipeline.split.parts import PartitionedBody
from flint.steps.captured import Body


def partition_body(body: Body) -> PartitionedBody:
    """Partition with Shardy. Raises FlintError FL401, FL402 or FL403."""
    program, results = partition_with_results(body.captured)
    assert len(results) == len(body.results), f"{len(results)} results, {len(body.results)} ports"
    arguments = tuple(range(len(body.arguments)))  # the walk begins with a row for each argument
    return PartitionedBody(program, body.arguments, body.results, arguments, results)


def refuse_axis(program: Program, axis: str) -> None:
    """Raise FlintError FL240 if a stage communicates along `axis`, where the others are.

    The positions of a pipeline run different programs: none of the others would take part.
    """
    for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
        if axis in {ref.name for ref in _axes(program, row)}:
            what, scope = program.row(row), program.strings[program.scope[row]]
            raise FlintError(
                "FL240",
                f"{what.opcode.partition('.')[2]} over {what.group or what.route} runs inside a "
                f"stage{f' ({scope})' if scope else ''}: '{axis}' is where the other stages lie",
                place=what.location or None,
                help=f"in a stage, communicate along other axes. jax.shard_map takes all axes of "
                f"the mesh: give it axis_names without '{axis}', or leave check_vma on",
            )


def _axes(program: Program, row: int) -> tuple[AxisRef, ...]:
    group, route = int(program.group[row]), int(program.route[row])
    if group >= 0:
        return program.groups[group].axes
    return program.routes[route].axes if route >= 0 else ()
