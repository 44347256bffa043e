"""A computation as it is walked through."""

from __future__ import annotations

from functools import cached_property

from flint.passes.hlo.module import Computation, HloModule
from flint.passes.hlo.places import KnownPlaces
from flint.passes.hlo.trees import Rows
from flint.passes.hlo.trip_counts import InstructionEvaluator, Value


class Visit:
    """One run through a computation: its arguments as rows and, where known, as integers."""

    def __init__(
        self,
        module: HloModule,
        computation: Computation,
        arguments: list[Rows],
        known: list[Value],
        asynchronous: bool = False,
    ) -> None:
        self.computation = computation
        self.arguments = arguments
        self.asynchronous = asynchronous
        self.rows: dict[int, Rows] = {}
        self.places = KnownPlaces(max(module.num_partitions, 1))
        self.value = InstructionEvaluator(module, computation, known)

    @cached_property
    def parts_read(self) -> dict[int, set[int]]:
        """Of instructions with several results, the numbers of those that are read one by one."""
        found: dict[int, set[int]] = {}
        for i in self.computation.instructions:
            if i.opcode == "get-tuple-element":
                found.setdefault(i.operand_ids[0], set()).add(i.tuple_index)
        return found
