"""Loops that run once, without the loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flint.ir.columns import kept
from flint.ir.program import Flag, Program, RegionKind
from flint.passes.base import Pass


@dataclass(frozen=True)
class OpenSingleTrips(Pass):
    """The body of a loop of one trip becomes part of what is around it (`WhileLoopSimplifier`).

    What the loop carried are views of what it began as.
    """

    name: ClassVar[str] = "open-single-trips"

    def apply(self, program: Program) -> Program:
        """Return the program without such loops."""
        once = [r.kind is RegionKind.LOOP and r.trip_count == 1 for r in program.regions]
        if not any(once):
            return program
        outer = list(range(len(once))) + [-1]
        for index, region in enumerate(program.regions):
            if once[index]:
                outer[index] = outer[region.parent]
        number = np.append(np.cumsum(~np.array(once)) - 1, -1)
        regions = tuple(
            replace(region, parent=int(number[outer[region.parent]]))
            for region, gone in zip(program.regions, once, strict=True)
            if not gone
        )
        flags, alias = program.flags.copy(), program.alias.copy()
        for region in (r for r, gone in zip(program.regions, once, strict=True) if gone):
            for row, _ in region.carries:
                read = program.dependencies(row)
                if len(read) == 1:
                    flags[row] |= np.uint8(Flag.VIEW)
                    alias[row] = read[0]
        table = number[np.array(outer)]
        region_column = table[program.region].astype(np.int32)
        opened = program.with_rows(regions=regions, region=region_column, flags=flags, alias=alias)
        return kept(opened, np.ones(len(program), dtype=np.bool_))
