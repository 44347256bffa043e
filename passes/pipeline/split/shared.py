"""SharedBodies: a body of a pipeline is partitioned once for all pipelines that have it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from flint.passes.pipeline.split.parts import PartitionedBody
from flint.steps.captured import Body

#: Bodies that are kept: some pipelines of a few different stages each.
MOST_BODIES = 48


class SharedBodies:
    """Partitioned bodies by all that they are made of: the module's bytes, the mesh, the ports.

    Pipelines that differ in microbatches, schedule or the number of equal stages have the same ones.
    Those with trip counts are not kept, as loops note which counts they take.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[object, PartitionedBody] = OrderedDict()

    def partitioned(
        self, body: Body, partition: Callable[[Body], PartitionedBody]
    ) -> PartitionedBody:
        """What `partition` gives for a body, or gave for an equal one."""
        if body.captured.trip_counts:
            return partition(body)
        captured = body.captured
        key = (captured.module, captured.mesh, body.axis, body.arguments, body.results)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = partition(body)
            if len(self._found) > MOST_BODIES:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return found
